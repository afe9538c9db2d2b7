#include "launcher/coordinator/waiting_call.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/match.h"

namespace ddprun::coordinator {
namespace {

constexpr size_t kCallBytesMax = 80;

// Calls in which a rank waits for all others: NCCL's, Gloo's and MPI's, and what PyTorch's
// programs see of them.
constexpr absl::string_view kWaitingCalls[] = {
    "ncclCommInit",
    "ncclCommSplit",
    "ncclTransport",
    "bootstrapInit",
    "ncclAll",
    "ncclBroadcast",
    "ncclReduce",
    "init_process_group",
    "store_based_barrier",
    "ProcessGroup",
    "c10d::Work::wait",
    "all_reduce",
    "all_gather",
    "broadcast_object",
    "barrier (torch",
    "gloo::",
    "connectFullMesh",
    "MPI_Init",
    "MPI_Barrier",
    "MPI_Allreduce",
    "ddprun_exchange",
};

// Background threads wait in such calls all the time: only the main one counts (py-spy and gdb name
// it; the kernel's own facts hold no such calls). Empty: it was not seen.
absl::string_view MainThread(absl::string_view stack) {
  constexpr absl::string_view kHeader = "\nThread ";
  size_t begin = absl::StartsWith(stack, kHeader.substr(1)) ? 0 : stack.find(kHeader);
  while (begin != absl::string_view::npos) {
    if (stack[begin] == '\n') ++begin;
    const size_t end = stack.find(kHeader, begin);
    const absl::string_view thread = stack.substr(begin, end - begin);
    const absl::string_view header = thread.substr(0, thread.find('\n'));
    if (absl::StartsWith(header, "Thread 1 (") || absl::StrContains(header, "\"MainThread\"")) {
      return thread;
    }
    begin = end;
  }
  return "";
}

}  // namespace

bool ShowsMainThread(absl::string_view stack) {
  return !MainThread(stack).empty();
}

std::string WaitingCall(absl::string_view stack) {
  stack = MainThread(stack);
  size_t first = absl::string_view::npos, length = 0;
  for (const absl::string_view call : kWaitingCalls) {
    const size_t at = stack.find(call);
    if (at < first) first = at, length = call.size();
  }
  if (first == absl::string_view::npos) return "";
  const auto of_name = [&](size_t i) {
    const unsigned char c = static_cast<unsigned char>(stack[i]);
    return std::isalnum(c) != 0 || c == '_' || c == ':';
  };
  size_t begin = first, end = first + length;
  while (begin > 0 && of_name(begin - 1)) --begin;
  while (end < stack.size() && of_name(end)) ++end;
  return std::string(stack.substr(begin, std::min(end - begin, kCallBytesMax)));
}

}  // namespace ddprun::coordinator
