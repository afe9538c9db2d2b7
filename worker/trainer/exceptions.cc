#include "worker/trainer/exceptions.h"

#include <torch/csrc/jit/runtime/jit_exception.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/trainer/dry_run.h"
#include "worker/trainer/out_of_memory.h"

namespace ddprun {
namespace {

absl::Status DescribeOutOfMemory(const std::string& reason, const Session& session) {
  OutOfMemory what = {.reason = reason,
                      .state = session.state_bytes,
                      .in_use = PeakMemoryInUse(session.device),
                      .on_cpu = session.device.is_cpu()};
  if (session.train_data != nullptr) {
    fprintf(stderr, "out of memory; a dry run on the CPU finds out what would help\n");
  }
  const std::optional<MemoryAdvice> advice =
      DryRun(session.config, session.train_data, session.world_size,
             session.client == nullptr ? 1 : ddprun_local_world_size(session.client),
             session.state_bytes.weights);
  if (advice) what.advice = &*advice;
  return absl::ResourceExhaustedError(OutOfMemoryText(what, session.config));
}

absl::Status DescribeException(const std::exception& error, const Session& session) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      torch_error == nullptr ? error.what() : torch_error->what_without_backtrace();
  // What no restart changes, ours and LibTorch's.
  if (dynamic_cast<const c10::ValueError*>(&error) != nullptr) {
    return absl::FailedPreconditionError(text);
  }
  if (const auto* raised = dynamic_cast<const torch::jit::JITException*>(&error)) {
    const std::string type = raised->getPythonClassName().value_or("an exception");
    return absl::FailedPreconditionError(absl::StrCat("the TorchScript module raised ", type, ": ",
                                                      raised->getOriginalMsg().value_or(""), "\n",
                                                      text));
  }
  if (!IsOutOfMemory(error)) return absl::InternalError(text);
  return DescribeOutOfMemory(text, session);
}

}  // namespace

absl::Status CatchingAll(const Session& session, const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return DescribeException(error, session);
  } catch (...) {
    return absl::InternalError("an exception of unknown type");
  }
}

}  // namespace ddprun
