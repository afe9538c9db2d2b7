// NCCL behind the same interface. Without a GPU this checks that the library opens, with all that
// it needs, and says in one clear status that there is none; with two or more, one process a GPU
// runs every operation.
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/communicator.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Nccl, WithoutAGpuThereIsAClearStatusAndNoCrash) {
  if (access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "there is a GPU here";
  CommunicatorOptions options;
  options.name = "gradients";
  options.size = 2;
  options.device = 0;
  const auto made = CreateNcclCommunicator(options, Exchange{});
  const std::string message(made.status().message());
  if (made.status().code() == absl::StatusCode::kNotFound) {
    // Built without CUDA's headers: the message says which file is missing and what to do.
    EXPECT_THAT(message, AllOf(HasSubstr("libddp_worker_cuda.so"), HasSubstr("No such file"),
                               HasSubstr("./scripts/build.sh")));
    return;
  }
  EXPECT_EQ(made.status().code(), absl::StatusCode::kUnavailable) << message;
  EXPECT_THAT(message, AllOf(HasSubstr("communicator 'gradients' (nccl)"),
                             HasSubstr("there is no usable GPU")));
}

}  // namespace
}  // namespace ddprun
