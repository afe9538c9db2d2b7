// Rows of the reported troubles about host names, addresses and ports: names that do not resolve,
// lying resolvers, IPv6 alone, jobs side by side, thieves of ports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/process/launch.h"
#include "tests/process/rows_program.h"

namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr char kUnshare[] = "/usr/bin/unshare";

// Runs a script of the shell in new namespaces; needs root.
class RowsNamespaces : public ::testing::Test {
 protected:
  // A script with $DDPRUN; its exit code is that of the script.
  void Run(const std::string& flags, const std::string& script, int* code, std::string* output) {
    Program probe({kUnshare, flags, "true"}, folder_.path());
    if (probe.Wait() != 0) GTEST_SKIP() << "unshare " << flags << ": " << probe.Output();
    Program program({kUnshare, flags, "/bin/bash", "-c", script}, folder_.path(),
                    Program::Where::kBackground, {{"DDPRUN", fs::absolute(DdprunPath())}});
    *code = program.Wait();
    *output = program.Output();
  }
  ScratchFolder folder_;
};

// What a rank 0 and a rank 1 do: one listens, the other one connects.
constexpr char kPair[] = R"(
import os, socket, sys, time
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
family = socket.AF_INET6 if ":" in host else socket.AF_INET
if os.environ["RANK"] == "0":
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, port))
    server.listen()
    server.accept()[0].sendall(b"met\n")
else:
    while True:
        client = socket.socket(family)
        try:
            client.connect((host, port))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    print(host, client.makefile().readline(), end="")
)";

// L51, S15: a host name that nobody can resolve.
TEST_F(RowsNamespaces, AHostNameThatDoesNotResolveIsNeverUsed) {
  { std::ofstream(folder_ / "pair.py") << kPair; }
  int code = -1;
  std::string output;
  Run("-u", "hostname bogus.invalid && exec $DDPRUN --nproc 2 --run-dir r pair.py", &code, &output);
  if (IsSkipped()) return;
  EXPECT_EQ(code, 0) << output;
  EXPECT_THAT(output, HasSubstr("[bogus:1] 127.0.0.1 met\n"));
}

// L52, S15: the resolver calls 127.0.0.1 by a name that leads nowhere; what was typed is kept.
TEST_F(RowsNamespaces, AnAddressIsNotReplacedByTheNameThatAResolverHasForIt) {
  { std::ofstream(folder_ / "hosts") << "127.0.0.1 lying.invalid\n192.0.2.1 lying.invalid\n"; }
  { std::ofstream(folder_ / "pair.py") << kPair; }
  for (const char* wish : {"", "--rdzv-endpoint 127.0.0.1:0 ", "--master-addr 127.0.0.1 "}) {
    int code = -1;
    std::string output;
    Run("-um",
        "hostname lying.invalid && mount --bind hosts /etc/hosts && rm -rf r && exec $DDPRUN "
        "--nproc 2 --run-dir r " +
            std::string(wish) + "pair.py",
        &code, &output);
    if (IsSkipped()) return;
    EXPECT_EQ(code, 0) << output;
    EXPECT_THAT(output, HasSubstr("[lying:1] 127.0.0.1 met\n")) << wish;
  }
}

// L54, S15: a network namespace without IPv4, with coordinator and agent in one process and apart.
TEST_F(RowsNamespaces, WhereOnlyIpv6IsThereJobsRun) {
  { std::ofstream(folder_ / "pair.py") << kPair; }
  int code = -1;
  std::string output;
  Run("-n", R"(ip link set lo up && ip addr del 127.0.0.1/8 dev lo || exit 99
    $DDPRUN --nproc 2 --run-dir r pair.py || exit 1
    $DDPRUN coordinator --listen '[::1]:0' --run-dir r2 pair.py > out 2>&1 &
    until grep -q '^listening on .*$' out; do sleep 0.02; done
    $DDPRUN agent --nproc 2 --coordinator $(sed -n 's/^listening on //p' out) && wait $!)",
      &code, &output);
  if (IsSkipped()) return;
  if (code == 99) GTEST_SKIP() << "ip: " << output;
  EXPECT_EQ(code, 0) << output << ReadText(folder_ / "out");
  for (const char* run : {"r", "r2"}) {
    EXPECT_EQ(ReadText(folder_.path() + "/" + run + "/logs/g1/rank1.log"), "::1 met\n") << run;
  }
}

// L55, L38, L74, S14: two jobs with nothing but defaults, at once, in one folder.
TEST(RowsPorts, TwoDefaultJobsAtOnceBothFinish) {
  ScratchFolder folder;
  { std::ofstream(folder / "pair.py") << kPair; }
  // Each waits until both are there, so that they run at the same time.
  const std::vector<std::string> command = {
      DdprunPath(),
      "--nproc",
      "2",
      "--",
      "/bin/bash",
      "-c",
      "touch here-$DDPRUN_JOB_ID-$RANK; until [ $(ls here-* | wc -l) = 4 ]; do sleep 0.02; done; "
      "exec python3 pair.py"};
  Program one(command, folder.path()), other(command, folder.path());
  EXPECT_EQ(one.Wait(), 0) << one.Output();
  EXPECT_EQ(other.Wait(), 0) << other.Output();
  for (Program* program : {&one, &other}) {
    EXPECT_THAT(program->Output(), HasSubstr(":1] 127.0.0.1 met\n"));
    const std::string job = program->LineBehind("ddprun: job ").substr(0, 20);
    EXPECT_EQ(ReadText(folder.path() + "/runs/" + job + "/logs/g1/rank1.log"), "127.0.0.1 met\n")
        << "the default log folder of job " << job;
  }
  EXPECT_NE(one.LineBehind("ddprun: job "), other.LineBehind("ddprun: job "));
}

// Somebody else's socket on a port: true when it could be had.
class Thief {
 public:
  explicit Thief(int port, bool reuse) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    if (reuse) setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in any = {};
    any.sin_family = AF_INET;
    any.sin_port = htons(static_cast<uint16_t>(port));
    has_it_ = bind(fd_, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 && listen(fd_, 8) == 0;
  }
  ~Thief() { close(fd_); }
  Thief(const Thief&) = delete;
  Thief& operator=(const Thief&) = delete;
  bool has_it() const { return has_it_; }

 private:
  int fd_;
  bool has_it_ = false;
};

// L56, S14, R10, TR18: MASTER_PORT is held until rank 0 listens, so that an ordinary program cannot
// have it. One that insists gets it, and the job goes on with another port, free of charge.
TEST(RowsPorts, AThiefOfMasterPortGetsNothingOrCostsNothing) {
  Launch launch(Mode::kTogether, 2,
                {"--max-restarts", "0", "--", "/bin/bash", "-c",
                 R"(cd $DDPRUN_STATE_DIR; [ $RANK = 0 ] || exec sleep 0.2
      echo $MASTER_PORT > port; mv port port-$DDPRUN_GENERATION; until [ -e go ]; do sleep 0.02; done
      exec python3 -c 'import os, socket
port = int(os.environ["MASTER_PORT"]); server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try: server.bind(("", port))
except OSError as error: raise SystemExit(f"init_process_group: bind to port {port}: {error}")
server.listen()')"});
  const std::string first = launch.run_dir() + "/state/port-1";
  ASSERT_TRUE(WaitUntil([&] { return fs::exists(first); }, 20));
  const int port = std::stoi(ReadText(first));
  EXPECT_FALSE(Thief(port, false).has_it()) << "the port was not held";
  const Thief thief(port, true);
  ASSERT_TRUE(thief.has_it());
  { std::ofstream(launch.run_dir() + "/state/go") << ""; }
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_THAT(launch.Log(1, 0), HasSubstr("Address already in use"));
  EXPECT_EQ(launch.Result()["restarts"], 0);
  EXPECT_EQ(launch.Result()["failures"][0]["cause"], "port_collision");
  EXPECT_NE(std::stoi(ReadText(launch.run_dir() + "/state/port-2")), port);
}

}  // namespace
}  // namespace ddprun::testing
