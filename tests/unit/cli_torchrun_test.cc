// torchrun's command line: every option of the installed torchrun is known in each spelling, does
// what it does there, or says why it cannot (S23).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "launcher/cli/dry_run.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/preflight.h"
#include "tests/unit/cli_folder.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// Each option of the real parser: its spellings, whether it takes a value, its PET_ variable.
nlohmann::json RealOptions(const std::string& python) {
  const std::string command = absl::StrCat(
      python,
      " -c '\nimport json, argparse\nfrom torch.distributed.run import get_args_parser\n"
      "from torch.distributed.argparse_util import env, check_env\n"
      "print(json.dumps([{\"names\": a.option_strings, \"flag\": a.nargs == 0,\n"
      "  \"variable\": a.dest.upper() if isinstance(a, (env, check_env)) else \"\"}\n"
      "  for a in get_args_parser()._actions if a.option_strings and a.dest != \"help\"]))' "
      "2>/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  size_t got = 0;
  while (pipe != nullptr && (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
    text.append(buffer.data(), got);
  }
  if (pipe != nullptr) pclose(pipe);
  return nlohmann::json::parse(text, nullptr, false);
}

std::string Hyphened(std::string name) {
  for (size_t i = 2; i < name.size(); ++i) {
    if (name[i] == '_') name[i] = '-';
  }
  return name;
}

// S23.
TEST(TorchrunTableTest, EveryOptionOfTheInstalledTorchrunIsKnown) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "DDPRUN_PYTHON is not set";
  const nlohmann::json options = RealOptions(python);
  ASSERT_TRUE(options.is_array()) << "torch.distributed.run could not be imported by " << python;
  ASSERT_GE(options.size(), 29u);
  for (const auto& option : options) {
    for (const std::string name : option["names"]) {
      const OptionRow* row = FindOption(Hyphened(name), kForRun);
      ASSERT_NE(row, nullptr) << "torchrun has " << name << ", ddprun has not";
      EXPECT_EQ(row->value[0] == '\0', option["flag"].get<bool>()) << name;
      EXPECT_EQ(std::string(row->pet), option["variable"].get<std::string>()) << name;
    }
  }
}

class TorchrunTest : public ::testing::Test {
 protected:
  TorchrunTest() {
    here_.working_dir = folder_.path();
    here_.binary_folder = folder_ / "bin";
    here_.cores = 4;
    folder_.Write("path/python3", "", 0755);
    folder_.Write("train.py", "");
    folder_.Write("prog", "", 0755);
    here_.environment = {{"PATH", folder_ / "path"}};
  }
  // The variables are the environment of ddprun too.
  absl::StatusOr<RunPlan> Plan(const Words& words, const Variables& variables = {}) {
    const auto parsed = ParseCommandLine(words, "ddprun", variables);
    if (!parsed.ok()) return parsed.status();
    Surroundings here = here_;
    here.environment.insert(variables.begin(), variables.end());
    return PlanRun(*parsed, here);
  }
  RunPlan Good(const Words& words, const Variables& variables = {}) {
    const auto plan = Plan(words, variables);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : RunPlan();
  }
  std::string ErrorOf(const Words& words, const Variables& variables = {}) {
    const std::vector<std::string> before = folder_.All();
    const auto plan = Plan(words, variables);
    EXPECT_EQ(folder_.All(), before) << "planning makes nothing";
    return plan.ok() ? "no error" : std::string(plan.status().message());
  }

  Folder folder_;
  Surroundings here_;
};

TEST_F(TorchrunTest, ProgramsRunAsTorchrunRunsThem) {
  folder_.Write("my/python", "", 0755);
  const auto program = [&](const Words& words, const Variables& variables = {}) {
    const auto spec = Good(words, variables).spec;
    return std::vector<std::string>(spec.program().begin(), spec.program().end());
  };
  EXPECT_THAT(program({"-m", "package.train", "--x"}),
              ElementsAre("python3", "-u", "-m", "package.train", "--x"));
  EXPECT_THAT(program({"--module", "trainer.cfg"}),
              ElementsAre("python3", "-u", "-m", "trainer.cfg"));
  EXPECT_THAT(program({"--no-python", "./prog", "-m"}), ElementsAre("./prog", "-m"));
  EXPECT_THAT(program({"--no_python", "--", "./prog"}), ElementsAre("./prog"));
  EXPECT_THAT(program({"--run-path", "train.py", "a"}),
              ElementsAre("python3", "-u", "-c", HasSubstr("runpy.run_path"), "train.py", "a"));
  EXPECT_THAT(program({"--run-path", "--no-python", "train.py"}), Contains("-c"))
      << "--run-path goes before --no-python";
  EXPECT_THAT(program({"train.py"}, {{"PYTHON_EXEC", folder_ / "my/python"}}),
              ElementsAre(folder_ / "my/python", "-u", "train.py"));
  EXPECT_TRUE(Good({"train.py", "${local_rank}"}).spec.launching().substitute_local_rank());
  EXPECT_FALSE(Good({"--", "./prog"}).spec.launching().substitute_local_rank());
}

TEST_F(TorchrunTest, ValuesReachTheJob) {
  const v1::JobSpec spec =
      Good({"--nnodes=1:1", "--role=trainer", "--rdzv-id", "77", "--rdzv_backend=c10d",
            "--rdzv-conf=join_timeout=90,read_timeout=5", "--virtual_local_rank",
            "--numa_binding=node", "--signals_to_handle=SIGTERM,SIGUSR1", "--shutdown_timeout=4",
            "--start-method=spawn", "--event-log-handler=null", "--max_restarts=5", "train.py"})
          .spec;
  EXPECT_EQ(spec.job_id(), "77");
  EXPECT_EQ(spec.launching().role(), "trainer");
  EXPECT_TRUE(spec.launching().virtual_local_rank());
  EXPECT_EQ(spec.launching().cpu_binding(), "node");
  EXPECT_EQ(spec.join_timeout_seconds(), 90);
  EXPECT_EQ(spec.grace_seconds(), 4);
  EXPECT_EQ(spec.restart().max_restarts(), 5u);
  EXPECT_EQ(spec.launching().torchrun_environment().at("TORCHELASTIC_SIGNALS_TO_HANDLE"),
            "SIGTERM,SIGUSR1");
}

TEST_F(TorchrunTest, AnEndpointIsTheMastersAddress) {
  const auto launching = [&](const Words& words) {
    Words whole = words;
    whole.emplace_back("train.py");
    return Good(whole).spec.launching();
  };
  v1::Launching by_endpoint = launching({"--rdzv-endpoint=127.0.0.1:0"});
  EXPECT_EQ(by_endpoint.master_address(), "127.0.0.1");
  EXPECT_EQ(by_endpoint.master_port(), 0u);
  EXPECT_EQ(launching({"--rdzv-endpoint=localhost"}).master_address(), "localhost");
  EXPECT_EQ(launching({"--master-addr=[::1]"}).master_address(), "::1");
  EXPECT_EQ(launching({"--standalone", "--rdzv-endpoint=127.0.0.1:1"}).master_address(), "");
  EXPECT_EQ(
      launching({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=127.0.0.1"})
          .master_address(),
      "");
}

// S14, L56: a wished port that is taken is known before anything starts.
TEST_F(TorchrunTest, ATakenMasterPortIsAnError) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(fd, generic, size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, generic, &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  EXPECT_THAT(
      ErrorOf({"--master-port", port, "train.py"}),
      AllOf(HasSubstr("--master-port " + port), HasSubstr("in use"), HasSubstr("free port")));
  close(fd);
  EXPECT_EQ(Good({"--master-port", port, "train.py"}).spec.launching().master_port(),
            ntohs(address.sin_port));
}

TEST_F(TorchrunTest, RedirectedLocalRanksAreQuietUnlessTeed) {
  const auto quiet = [&](Words words) {
    words.insert(words.end(), {"--nproc=3", "train.py"});
    const auto spec = Good(words).spec;
    return std::vector<uint32_t>(spec.logging().quiet_local_ranks().begin(),
                                 spec.logging().quiet_local_ranks().end());
  };
  EXPECT_THAT(quiet({"-r", "3"}), ElementsAre(0, 1, 2));
  EXPECT_THAT(quiet({"-r3"}), ElementsAre(0, 1, 2));
  EXPECT_THAT(quiet({"--redirects=0:3,2:3"}), ElementsAre(0, 2));
  EXPECT_THAT(quiet({"-r", "3", "-t", "1:3"}), ElementsAre(0, 2));
  EXPECT_THAT(quiet({"-t", "1"}), IsEmpty());
  EXPECT_THAT(quiet({"-r", "0"}), IsEmpty());
  EXPECT_THAT(quiet({"--local-ranks-filter", "1,2"}), ElementsAre(0));
  EXPECT_THAT(quiet({"--local_ranks_filter=0", "-r", "1:3"}), ElementsAre(1, 2));
}

TEST_F(TorchrunTest, TheLogFolderHoldsTheRunFolders) {
  EXPECT_EQ(Good({"--log-dir", "logs", "--rdzv-id=a", "train.py"}).spec.run_dir(),
            folder_ / "logs/a");
  // The same name again is no reason to refuse a run, as it is with --job-id.
  folder_.Write("runs/a/job.json", R"({"job_id":"a","program":["true"]})");
  const RunPlan again = Good({"--rdzv-id=a", "train.py"});
  EXPECT_THAT(again.spec.run_dir(), HasSubstr("runs/a_"));
  EXPECT_EQ(again.spec.job_id(), "a");
  EXPECT_THAT(ErrorOf({"--job-id=a", "train.py"}), HasSubstr("holds job a already"));
  EXPECT_NE(Good({"--rdzv-id=none", "train.py"}).spec.job_id(), "none");
}

TEST_F(TorchrunTest, VariablesStandForOptionsThatAreNotGiven) {
  const Variables kubeflow = {{"PET_NNODES", "1"},
                              {"PET_NPROC_PER_NODE", "2"},
                              {"PET_NODE_RANK", "0"},
                              {"PET_MASTER_ADDR", "127.0.0.1"},
                              {"PET_MASTER_PORT", "0"},
                              {"PET_RDZV_ENDPOINT", ""},
                              {"PET_MAX_RESTARTS", "7"},
                              {"PET_STANDALONE", "0"},
                              {"PET_VIRTUAL_LOCAL_RANK", "1"}};
  const v1::JobSpec spec = Good({"train.py"}, kubeflow).spec;
  EXPECT_EQ(spec.processes_per_node(), 2u);
  EXPECT_EQ(spec.restart().max_restarts(), 7u);
  EXPECT_EQ(spec.launching().master_address(), "127.0.0.1");
  EXPECT_TRUE(spec.launching().virtual_local_rank());
  EXPECT_EQ(Good({"--nproc", "3", "train.py"}, kubeflow).spec.processes_per_node(), 3u);
  EXPECT_EQ(
      Good({"--rdzv-endpoint=localhost", "train.py"}, kubeflow).spec.launching().master_address(),
      "localhost");
  EXPECT_EQ(Good({"--job-id=x", "train.py"}, {{"PET_RDZV_ID", "y"}}).spec.job_id(), "x");
  EXPECT_THAT(Good({"package.train"}, {{"PET_MODULE", "1"}}).spec.program(), Contains("-m"));
}

TEST_F(TorchrunTest, ABadVariableIsNamed) {
  const std::pair<Variables, std::string> cases[] = {
      {{{"PET_NNODES", "x"}}, "PET_NNODES=x"},
      {{{"PET_NPROC_PER_NODE", ""}}, "PET_NPROC_PER_NODE"},
      {{{"PET_STANDALONE", "yes"}}, "give 1 or 0"},
      {{{"PET_STANDALONE", ""}}, "PET_STANDALONE="},
      {{{"PET_MASTER_PORT", "70000"}}, "PET_MASTER_PORT=70000"},
      {{{"PET_RDZV_BACKEND", "etcd-v2"}}, "needs no etcd"},
      {{{"PET_MONITOR_INTERVAL", "fast"}}, "PET_MONITOR_INTERVAL=fast"},
      {{{"PET_START_METHOD", "fork"}}, "PET_START_METHOD=fork"}};
  for (const auto& [variables, says] : cases) {
    EXPECT_THAT(ErrorOf({"train.py"}, variables), HasSubstr(says));
  }
}

TEST_F(TorchrunTest, WhatHasNothingToDoSaysSo) {
  EXPECT_THAT(Good({"--monitor-interval=5", "train.py"}).notes, Contains(HasSubstr("at once")));
  EXPECT_THAT(Good({"--standalone", "--rdzv-id=5", "train.py"}).notes,
              Contains(HasSubstr("left aside")));
  EXPECT_THAT(Good({"--rdzv-conf=read_timeout=60", "train.py"}).notes,
              Contains(HasSubstr("read_timeout")));
  EXPECT_THAT(Good({"train.py"}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}}).notes,
              Contains(HasSubstr("--hang-timeout")));
}

struct Refused {
  Words words;
  std::vector<std::string> says;
};

// L48: a flag without effect is an error, and what excludes each other too.
TEST_F(TorchrunTest, WhatCannotBeHadIsOneClearError) {
  const Refused cases[] = {
      {{"--rdzv-backend=etcd", "train.py"}, {"--rdzv-backend etcd:", "needs no etcd"}},
      {{"--rdzv-backend=mine", "train.py"}, {"plug-ins", "c10d"}},
      {{"--rdzv-endpoint=a:b", "train.py"}, {"--rdzv-endpoint a:b:", "HOST:PORT"}},
      {{"--rdzv-endpoint=::1:80", "train.py"}, {"brackets"}},
      {{"--rdzv-conf=x", "train.py"}, {"KEY=VALUE"}},
      {{"--rdzv-conf=magic=1", "train.py"}, {"magic", "no effect"}},
      {{"--nproc-per-node=xpu", "train.py"}, {"Intel"}},
      {{"--start-method=forkserver", "train.py"}, {"--start-method forkserver:", "executed"}},
      {{"--event-log-handler=console", "train.py"}, {"events.jsonl"}},
      {{"--logs-specs=mine", "train.py"}, {"--logs-specs mine:", "Python's plug-ins"}},
      {{"--duplicate-stdout-filters=loss", "train.py"}, {"search", "grep"}},
      {{"--duplicate_stderr_filters", "x", "train.py"}, {"search"}},
      {{"-r", "1", "train.py"}, {"only stderr", "one pipe"}},
      {{"-r", "0:3,1:2", "train.py"}, {"only stdout of local rank 1"}},
      {{"-r", "3", "-t", "2", "train.py"}, {"only stderr"}},
      {{"-r", "4", "train.py"}, {"--redirects 4:", "0:3,1:0"}},
      {{"-r", "0:3,0:1", "train.py"}, {"twice"}},
      {{"-t", "x:1", "train.py"}, {"--tee x:1:"}},
      {{"--local-ranks-filter=a", "train.py"}, {"local ranks"}},
      {{"--local-ranks-filter=2", "--nproc=2", "train.py"}, {"local ranks 0 to 1"}},
      {{"--local-ranks-filter=0", "--log-ranks=0", "train.py"}, {"both choose"}},
      {{"--log-dir=a", "--run-dir=b", "train.py"}, {"--log-dir a:", "--run-dir b"}},
      {{"--rdzv-id=a", "--job-id=b", "train.py"}, {"--rdzv-id a:", "--job-id b"}},
      {{"--rdzv-id=a/b", "train.py"}, {"--rdzv-id a/b:", "letters"}},
      {{"--rdzv-endpoint=h:1", "--master-port=2", "train.py"}, {"--master-port"}},
      {{"--master-addr=localhost:1", "train.py"}, {"--master-port's"}},
      {{"--master-addr=198.51.100.7", "train.py"}, {"not an address of this machine"}},
      {{"--master-addr=bogus.invalid", "train.py"}, {"--master-addr bogus.invalid:", "no address"}},
      {{"--rdzv-endpoint=bogus.invalid:0", "train.py"}, {"--rdzv-endpoint bogus.invalid:"}},
      {{"--local-addr=198.51.100.7", "train.py"}, {"--local-addr 198.51.100.7:", "this machine"}},
      {{"--master-port=x", "train.py"}, {"--master-port x:", "0 to 65535"}},
      {{"--module", "--no-python", "x"}, {"--module and --no-python"}},
      {{"--module", "--run-path", "x"}, {"--module and --run-path"}},
      {{"-m", "--", "x"}, {"--module", "behind --"}},
      {{"-m", "a/b"}, {"--module a/b", "dots"}},
      {{"--run-path", "nofile.py"}, {"nofile.py", "no such Python file"}},
      {{"--no-python", "train.py"},
       {"no such program in PATH", "leave -- and --no-python away, or write python3 train.py"}},
      {{"--numa-binding=all", "train.py"}, {"core-complex"}},
      {{"--monitor-interval=-1", "train.py"}, {"--monitor-interval -1:", "seconds"}},
      {{"--max-restarts=-1", "train.py"}, {"--max-restarts -1:"}},
      {{"--virtual-local-rank=1", "train.py"}, {"takes no value"}},
  };
  for (const Refused& refused : cases) {
    const std::string error = ErrorOf(refused.words);
    for (const std::string& part : refused.says) {
      EXPECT_THAT(error, HasSubstr(part)) << ::testing::PrintToString(refused.words);
    }
  }
  EXPECT_THAT(ErrorOf({"train.py"}, {{"PYTHON_EXEC", "/nowhere/python"}}),
              HasSubstr("PYTHON_EXEC=/nowhere/python"));
  EXPECT_THAT(
      ErrorOf({"--virtual-local-rank", "--nproc=2", "train.py"}, {{"CUDA_VISIBLE_DEVICES", "3"}}),
      HasSubstr("CUDA_VISIBLE_DEVICES=3"));
}

// A program's dry run says what each worker gets, and what differs between them.
TEST_F(TorchrunTest, ADryRunShowsTheEnvironmentOfEveryWorker) {
  const auto options = ParseCommandLine(
      {"--nproc=2", "--dry-run", "--role=r", "--rdzv-id=j", "train.py", "${local_rank}"}, "ddprun");
  ASSERT_TRUE(options.ok());
  here_.environment["INHERITED"] = "x";
  const auto plan = PlanRun(*options, here_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string text = DryRunText(*options, *plan, here_, {});
  EXPECT_THAT(text, HasSubstr("\n  ROLE_NAME=r\n"));
  EXPECT_THAT(text, HasSubstr("\n  WORLD_SIZE=2\n"));
  EXPECT_THAT(text, HasSubstr("\n  TORCHELASTIC_RUN_ID=j\n"));
  EXPECT_THAT(text, HasSubstr("MASTER_PORT, PADDLE_MASTER"));
  EXPECT_THAT(text, HasSubstr("  rank 1: LOCAL_RANK=1 "));
  EXPECT_THAT(text, HasSubstr("python3 -u train.py '${local_rank}'"));
  EXPECT_THAT(text, Not(HasSubstr("INHERITED")));
}

TEST_F(TorchrunTest, ADryRunSaysWhatIsPreloaded) {
  const auto options =
      ParseCommandLine({"--dry-run", "--preload=torch,numpy", "train.py"}, "ddprun");
  ASSERT_TRUE(options.ok());
  const auto plan = PlanRun(*options, here_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(DryRunText(*options, *plan, here_, {}),
              HasSubstr("loaded once for all of a node: torch, numpy (--preload none"));
}

}  // namespace
}  // namespace ddprun::cli
