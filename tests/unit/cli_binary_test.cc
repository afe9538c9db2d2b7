// The binary itself: exit codes, that bad input makes nothing, and that arguments arrive untouched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/cli_folder.h"
#include "tests/unit/cli_process.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Ended Ddprun(const std::vector<std::string>& words, const Folder& folder,
             const std::vector<std::string>& environment = {}) {
  std::vector<std::string> command = {DdprunPath()};
  command.insert(command.end(), words.begin(), words.end());
  return RunToEnd(command, folder.path(), environment);
}

// What stands before each line of rank 0 (L71).
std::string Prefix() {
  char name[256] = "";
  EXPECT_EQ(gethostname(name, sizeof name - 1), 0);
  const std::string text = name;
  return absl::StrCat("[", text.substr(0, text.find('.')), ":0] ");
}

TEST(BinaryTest, BadInputIsExitCode2AndMakesNothing) {
  Folder folder;
  WriteTinyJob(folder);
  const std::vector<std::vector<std::string>> cases = {
      {"--nproc", "0", "train.cfg"},
      {"--nproc", "gpu", "--", "true"},
      {"--nprocs", "2", "--", "true"},
      {"--", "no-such-program-x"},
      {"--", "./train.cfg"},
      {"missing.cfg"},
      {"train.cfg", "--set", "modle.name=x"},
      {"train.cfg", "--nproc", "65"},
      {"--resume"},
      {"--run-dir", "train.cfg", "--", "true"},
      {"--run-dir", "/proc/ddprun-test", "--", "true"},
      {"agent", "--coordinator", "127.0.0.1:1", "--tls-ca", "/dev/zero"},
      {"--hosts", "@/dev/zero", "--", "true"},
      {"agent", "--coordinator", "0.0.0.0:1"},
      {"agent", "--coordinator", "no such host:1"},
  };
  const std::vector<std::string> before = folder.All();
  for (const auto& words : cases) {
    const Ended ended = Ddprun(words, folder, {"CUDA_VISIBLE_DEVICES="});
    EXPECT_EQ(ended.exit_code, 2) << ::testing::PrintToString(words) << ended.error;
    EXPECT_THAT(ended.error, StartsWith("ddprun: ")) << ::testing::PrintToString(words);
    EXPECT_EQ(ended.output, "") << ::testing::PrintToString(words);
    EXPECT_EQ(folder.All(), before) << ::testing::PrintToString(words);
  }
}

// Also where a secret is there, so that nothing else stands in the way.
TEST(BinaryTest, WhereNothingCanBeListenedOnIsExitCode2AndMakesNothing) {
  Folder folder;
  for (const char* place : {"nope.invalid:1", "192.0.2.1:29557", "[::ffff:127.0.0.1]:0",
                            "224.0.0.1:0", "255.255.255.255:0", "1.2.3:0"}) {
    const Ended ended = Ddprun({"coordinator", "--listen", place, "--", "true"}, folder,
                               {"DDPRUN_SECRET=of this test, and long enough"});
    EXPECT_EQ(ended.exit_code, 2) << place << ended.error;
    EXPECT_THAT(ended.error, StartsWith(absl::StrCat("ddprun: --listen ", place, ": ")));
    EXPECT_TRUE(folder.All().empty()) << place;
  }
}

TEST(BinaryTest, TooFewOpenFilesAreSaidBeforeAnythingIsMade) {
  Folder folder;
  const Ended few =
      RunToEnd({"/bin/sh", "-c", "ulimit -n 20; exec \"$0\" -- true", DdprunPath()}, folder.path());
  EXPECT_EQ(few.exit_code, 2) << few.error;
  EXPECT_THAT(few.error, AllOf(HasSubstr("ulimit -n"), HasSubstr("20"), HasSubstr("LimitNOFILE")));
  EXPECT_TRUE(folder.All().empty());
  const Ended raised = RunToEnd(
      {"/bin/sh", "-c", "ulimit -Sn 20; exec \"$0\" -- true", DdprunPath()}, folder.path());
  EXPECT_EQ(raised.exit_code, 0) << raised.error;
}

// The host's own agent is a node like any other; refused, it is not waited for.
TEST(BinaryTest, AHostWhoseOwnNodeIsRefusedEndsAtOnce) {
  Folder folder;
  const std::vector<std::string> secret = {"DDPRUN_SECRET=of this test, and long enough"};
  const int own = static_cast<int>(getpid());
  const std::vector<std::string> place = {
      "--run-dir",        "r",
      "--coordinator",    absl::StrCat("127.0.0.1:", 20000 + own % 10000),
      "--advertise-addr", "127.0.0.1"};
  std::vector<std::string> first = place;
  first.insert(first.end(), {"--nnodes", "1:2", "--max-restarts", "0", "--", "false"});
  EXPECT_EQ(Ddprun(first, folder, secret).exit_code, 1);
  std::vector<std::string> again = place;
  again.insert(again.end(), {"--resume", "--node-rank", "7"});
  const Ended ended = Ddprun(again, folder, secret);
  EXPECT_EQ(ended.exit_code, 2) << ended.error;
  EXPECT_THAT(ended.error, AllOf(HasSubstr("refused"), HasSubstr("--node-rank")));
}

TEST(BinaryTest, ControlCharactersOfWhatWasTypedAreShownAsText) {
  Folder folder;
  const std::string odd = "a\x1b]0;x\a\nb";
  const std::vector<std::vector<std::string>> cases = {
      {"--node", odd, "--", "true"},   {"--iface", odd, "--", "true"},
      {"--job-id", odd, "--", "true"}, {"--nnodes", "2", "--coordinator", odd + ":1", "--", "true"},
      {"--" + odd, "--", "true"},      {"--resume", "--run-dir", odd},
      {"--hosts", odd, "--", "true"},
  };
  for (const auto& words : cases) {
    const Ended ended = Ddprun(words, folder, {"CUDA_VISIBLE_DEVICES="});
    EXPECT_EQ(ended.exit_code, 2) << ended.error;
    EXPECT_THAT(ended.error, AllOf(HasSubstr("a\\x1b]0;x\\x07"), ::testing::Not(HasSubstr("\x1b")),
                                   ::testing::Not(HasSubstr("\a"))));
  }
  const Ended pet = Ddprun({"--", "true"}, folder, {"PET_NNODES=" + odd});
  EXPECT_EQ(pet.exit_code, 2);
  EXPECT_THAT(pet.error, HasSubstr("PET_NNODES=a\\x1b]0;x\\x07\\x0ab"));
}

TEST(BinaryTest, HelpAndVersionAreAnswered) {
  Folder folder;
  const Ended help = Ddprun({}, folder);
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("Examples"), HasSubstr("--nproc")));
  const Ended version = Ddprun({"--version"}, folder);
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, StartsWith("ddprun "));
}

TEST(BinaryTest, ADryRunMakesNothing) {
  Folder folder;
  const Ended ended = Ddprun({"--nproc", "2", "--dry-run", "--", "sh", "-c", "echo $RANK"}, folder);
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("RANK=1"), HasSubstr("sh -c 'echo $RANK'")));
  EXPECT_TRUE(folder.All().empty());
}

// S23: what looks like an option of ours is the program's.
TEST(BinaryTest, ArgumentsArriveUntouched) {
  Folder folder;
  folder.Write("show.sh", "#!/bin/sh\nprintf '<%s>' \"$@\"; echo\n", 0755);
  const std::string expected = Prefix() + "<--nproc><4><><a b><--><--resume>\n";
  const Ended dashed = Ddprun(
      {"--run-dir", "a", "--", "./show.sh", "--nproc", "4", "", "a b", "--", "--resume"}, folder);
  EXPECT_EQ(dashed.exit_code, 0) << dashed.error;
  EXPECT_EQ(dashed.output, expected);
  const Ended torchrun =
      Ddprun({"--run-dir", "b", "./show.sh", "--nproc", "4", "", "a b", "--", "--resume"}, folder);
  EXPECT_EQ(torchrun.exit_code, 0) << torchrun.error;
  EXPECT_EQ(torchrun.output, expected);
}

// S5, L60: the exit code is that of the worker at fault.
TEST(BinaryTest, ExitCodesAreThoseOfTheWorkerAtFault) {
  Folder folder;
  const std::pair<const char*, int> cases[] = {{"exit 0", 0},          {"exit 7", 7},
                                               {"exit 85", 85},        {"kill -KILL $$", 137},
                                               {"kill -SEGV $$", 139}, {"kill -ABRT $$", 134}};
  int run = 0;
  for (const auto& [script, code] : cases) {
    const std::string run_dir = absl::StrCat("r", run++);
    const Ended ended = Ddprun(
        {"--nproc", "2", "--max-restarts", "0", "--run-dir", run_dir, "--", "sh", "-c", script},
        folder);
    EXPECT_EQ(ended.exit_code, code) << script << "\n" << ended.error;
    EXPECT_THAT(folder.Read(run_dir + "/result.json"),
                HasSubstr(code == 0 ? "succeeded" : "failed"));
  }
}

// L62, L74: without a change to the user's code.
TEST(BinaryTest, AFailureShowsTheEndOfItsLogAndWhatToDo) {
  Folder folder;
  const Ended ended =
      Ddprun({"--nproc", "2", "--max-restarts", "0", "--run-dir", "r", "--", "sh", "-c",
              "if [ $RANK = 1 ]; then echo it went wrong; exit 9; else exec sleep 50; fi"},
             folder);
  EXPECT_EQ(ended.exit_code, 9);
  EXPECT_THAT(ended.error, AllOf(HasSubstr("cause: rank 1"), HasSubstr("exited with code 9"),
                                 HasSubstr("r/logs/g1/rank1.log"), HasSubstr("| it went wrong"),
                                 HasSubstr("--resume --run-dir r")));
}

// L68: a byte that is no UTF-8, in output, log tail and environment.
TEST(BinaryTest, BytesThatAreNoUtf8AreCarried) {
  Folder folder;
  const Ended ended = Ddprun({"--max-restarts", "0", "--run-dir", "r", "--", "sh", "-c",
                              "printf '\\377'; echo \"$ODD\"; exit 3"},
                             folder, {"ODD=a\xfe"});
  EXPECT_EQ(ended.exit_code, 3) << ended.error;
  EXPECT_EQ(ended.output, Prefix() +
                              "\xff"
                              "a\xfe\n");
  EXPECT_EQ(folder.Read("r/logs/g1/rank0.log"),
            "\xff"
            "a\xfe\n");
  EXPECT_THAT(ended.error, HasSubstr("the end of its log"));
}

TEST(BinaryTest, ASecondRunInTheSameFolderIsRefused) {
  Folder folder;
  EXPECT_EQ(Ddprun({"--run-dir", "r", "--", "true"}, folder).exit_code, 0);
  const std::string job = folder.Read("r/job.json");
  const Ended again = Ddprun({"--run-dir", "r", "--", "true"}, folder);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.error, HasSubstr("--resume"));
  EXPECT_EQ(folder.Read("r/job.json"), job);
  const Ended resumed = Ddprun({"--run-dir", "r", "--resume"}, folder);
  EXPECT_EQ(resumed.exit_code, 0);
  EXPECT_THAT(resumed.error, HasSubstr("has succeeded already"));
}

}  // namespace
}  // namespace ddprun::cli
