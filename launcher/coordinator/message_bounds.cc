#include "launcher/coordinator/message_bounds.h"

#include <cstddef>
#include <string>

namespace ddprun::coordinator {
namespace {

constexpr size_t kShortBytesMax = 256;         // phases, names of collectives
constexpr size_t kReasonBytesMax = 4 * 1024;   // sentences, paths
constexpr size_t kReportBytesMax = 64 * 1024;  // one packet of a worker
constexpr size_t kTracebackBytesMax = 16 * 1024;
constexpr size_t kStackBytesMax = 32 * 1024;
constexpr size_t kTailLineBytesMax = 400;
constexpr int kTailLinesMax = 30;
constexpr int kArtifactsMax = 16;
constexpr int kPidsMax = 1024;
constexpr int kShardFilesMax = 4096;
constexpr size_t kResultValuesMax = 256;

void Cut(std::string* text, size_t bytes_max) {
  if (text->size() > bytes_max) text->resize(bytes_max);
}

template <typename List>
void CutList(List* list, int entries_max) {
  if (list->size() > entries_max) list->DeleteSubrange(entries_max, list->size() - entries_max);
}

void CutExited(v1::WorkerExited* exited) {
  CutList(exited->mutable_log_tail(), kTailLinesMax);
  for (std::string& line : *exited->mutable_log_tail()) Cut(&line, kTailLineBytesMax);
  CutList(exited->mutable_artifacts(), kArtifactsMax);
  for (std::string& path : *exited->mutable_artifacts()) Cut(&path, kReasonBytesMax);
  Cut(exited->mutable_phase(), kShortBytesMax);
  Cut(exited->mutable_core_dump(), kReasonBytesMax);
  if (exited->has_error()) {
    Cut(exited->mutable_error()->mutable_message(), kReasonBytesMax);
    Cut(exited->mutable_error()->mutable_traceback(), kTracebackBytesMax);
  }
  if (exited->has_out_of_memory()) {
    Cut(exited->mutable_out_of_memory()->mutable_text(), kReasonBytesMax);
  }
}

void CutPlace(v1::WorkerPlace* place) {
  Cut(place->mutable_phase(), kShortBytesMax);
  Cut(place->mutable_collective(), kShortBytesMax);
  Cut(place->mutable_stack(), kStackBytesMax);
  Cut(place->mutable_stack_source(), kShortBytesMax);
  Cut(place->mutable_state(), kShortBytesMax);
}

void CutResult(v1::WorkerResult* result) {
  auto& values = *result->mutable_values();
  if (values.size() > kResultValuesMax) values.clear();
  for (auto value = values.begin(); value != values.end();) {
    if (value->first.size() > kShortBytesMax || value->second.size() > kReportBytesMax) {
      value = values.erase(value);
    } else {
      ++value;
    }
  }
}

}  // namespace

void CutToBounds(v1::AgentMessage* message) {
  using M = v1::AgentMessage;
  switch (message->message_case()) {
    case M::kWorkerExited:
      return CutExited(message->mutable_worker_exited());
    case M::kWorkerFailed:
      return Cut(message->mutable_worker_failed()->mutable_message(), kReportBytesMax);
    case M::kGenerationStopped:
      if (message->generation_stopped().unkillable_pids_size() > kPidsMax) {
        message->mutable_generation_stopped()->mutable_unkillable_pids()->Truncate(kPidsMax);
      }
      return Cut(message->mutable_generation_stopped()->mutable_reason(), kReasonBytesMax);
    case M::kCheckpoint:
      CutList(message->mutable_checkpoint()->mutable_files(), kShardFilesMax);
      return Cut(message->mutable_checkpoint()->mutable_reason(), kReasonBytesMax);
    case M::kWorkerResult:
      return CutResult(message->mutable_worker_result());
    case M::kLeaving:
      return Cut(message->mutable_leaving()->mutable_reason(), kReasonBytesMax);
    case M::kWorkerStalled:
      if (message->worker_stalled().has_place()) {
        CutPlace(message->mutable_worker_stalled()->mutable_place());
      }
      return;
    case M::kWorkersExamined:
      for (auto& place : *message->mutable_workers_examined()->mutable_workers()) CutPlace(&place);
      return;
    case M::kNodeUnhealthy:
      Cut(message->mutable_node_unhealthy()->mutable_reason(), kReasonBytesMax);
      return Cut(message->mutable_node_unhealthy()->mutable_unreachable_address(), kShortBytesMax);
    default:  // numbers alone, or bounded by the core (exchange)
      return;
  }
}

}  // namespace ddprun::coordinator
