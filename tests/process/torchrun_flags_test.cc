// torchrun's flags at work: what the workers see and what the terminal shows. How they are read is
// tests/unit/cli_torchrun_test.cc's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A socket on a port of its own that takes connections, as another job's store does.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, generic, size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, generic, &size), 0);
    port_ = std::to_string(ntohs(address.sin_port));
  }
  ~Listener() { Close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  const std::string& port() const { return port_; }

 private:
  int fd_;
  std::string port_;
};

// S14: the wished port is every generation's; taken, nothing starts.
TEST(TorchrunFlagsTest, AWishedMasterPortIsEveryGenerationsOrAnError) {
  Listener other;
  {
    Launch launch(Mode::kTogether, 1, {"--master-port", other.port(), "--", "/bin/true"});
    const Finished finished = launch.Wait();
    EXPECT_EQ(finished.exit_code, 2) << finished.output;
    EXPECT_THAT(finished.output, AllOf(HasSubstr("--master-port " + other.port()),
                                       HasSubstr("Address already in use")));
    EXPECT_FALSE(std::filesystem::exists(launch.run_dir())) << "nothing was made";
  }
  other.Close();
  const std::string script = "echo port $MASTER_PORT; [ $DDPRUN_GENERATION = 2 ]";
  Launch launch(Mode::kTogether, 1,
                {"--master-port", other.port(), "--", "/bin/bash", "-c", script});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  for (int generation : {1, 2}) {
    EXPECT_EQ(launch.Log(generation, 0), "port " + other.port() + "\n") << generation;
  }
}

TEST(TorchrunFlagsTest, RedirectedRanksAreInTheirFilesOnly) {
  Launch launch(Mode::kTogether, 2,
                {"--redirects", "1:3", "--", "/bin/bash", "-c", "echo said by $RANK"});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("said by 0"), Not(HasSubstr("said by 1"))));
  EXPECT_EQ(launch.Log(1, 1), "said by 1\n");
}

// S23: an argument for each rank, and an environment in the place of options.
TEST(TorchrunFlagsTest, ArgumentsAndVariablesAreTorchruns) {
  Launch launch(
      Mode::kTogether, 2,
      {"--no-python", "/bin/bash", "-c", "echo $0 $ROLE_NAME $MASTER_ADDR", "rank-${local_rank}"},
      {{"PET_ROLE", "actor"}, {"PET_MASTER_ADDR", "127.0.0.1"}});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_EQ(launch.Log(1, 0), "rank-0 actor 127.0.0.1\n");
  EXPECT_EQ(launch.Log(1, 1), "rank-1 actor 127.0.0.1\n");
}

// A bad variable is bad usage, and is named.
TEST(TorchrunFlagsTest, ABadVariableStartsNothing) {
  Launch launch(Mode::kTogether, 1, {"--", "/bin/true"}, {{"PET_MAX_RESTARTS", "many"}});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.output, HasSubstr("PET_MAX_RESTARTS=many"));
  EXPECT_FALSE(std::filesystem::exists(launch.run_dir()));
}

// S23: the coordinator's workers on an agent get the same as those of `run`.
TEST(TorchrunFlagsTest, ACoordinatorsWorkersHaveRoleAndArguments) {
  Launch launch(Mode::kApart, 1,
                {"--role=actor", "--no-python", "/bin/bash", "-c", "echo $0 $ROLE_NAME",
                 "rank-${local_rank}"});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_EQ(launch.Log(1, 0), "rank-0 actor\n");
}

}  // namespace
}  // namespace ddprun::testing
