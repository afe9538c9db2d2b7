#include "launcher/sim/trace.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ddprun::sim {
namespace {

template <typename M>
std::string GenerationAndRank(const char* name, const M& message) {
  return absl::StrCat(name, " g", message.generation(), " rank ", message.rank());
}

std::string DescribeHello(const v1::Hello& hello) {
  std::string text = absl::StrCat("Hello ", hello.node(), "/", hello.incarnation());
  for (const auto& running : hello.running()) {
    absl::StrAppend(&text, " runs g", running.generation(), running.stopping() ? " stopping" : "");
  }
  return text;
}

std::string DescribeCheckpoint(const v1::CheckpointFact& fact) {
  static constexpr const char* kNames[] = {"?", "started", "written", "skipped", "failed"};
  const char* what = fact.what() >= 0 && fact.what() <= 4 ? kNames[fact.what()] : "?";
  return absl::StrCat(GenerationAndRank("Checkpoint", fact), " step ", fact.step(), " ", what);
}

std::string DescribeFact(const v1::AgentMessage& m) {
  using M = v1::AgentMessage;
  switch (m.message_case()) {
    case M::kHello:
      return DescribeHello(m.hello());
    case M::kHeartbeat:
      return absl::StrCat("Heartbeat ", m.heartbeat().sequence(), " g", m.heartbeat().generation(),
                          " state ", m.heartbeat().state());
    case M::kWorkerStarted:
      return GenerationAndRank("WorkerStarted", m.worker_started());
    case M::kWorkerReady:
      return GenerationAndRank("WorkerReady", m.worker_ready());
    case M::kWorkerProgressed:
      return absl::StrCat(GenerationAndRank("WorkerProgressed", m.worker_progressed()), " step ",
                          m.worker_progressed().step());
    case M::kWorkerFailed:
      return absl::StrCat(GenerationAndRank("WorkerFailed", m.worker_failed()), " kind ",
                          m.worker_failed().kind());
    case M::kWorkerExited:
      return absl::StrCat(GenerationAndRank("WorkerExited", m.worker_exited()), " code ",
                          m.worker_exited().exit_code(), " signal ", m.worker_exited().signal(),
                          m.worker_exited().stopped_by_us() ? " by order" : "");
    case M::kGenerationStopped:
      return absl::StrCat("GenerationStopped g", m.generation_stopped().generation(), ": ",
                          m.generation_stopped().reason());
    case M::kPublish:
      return absl::StrCat(GenerationAndRank("Publish", m.publish()), " ", m.publish().name(), "=",
                          m.publish().value());
    case M::kAwait:
      return absl::StrCat(GenerationAndRank("Await", m.await()), " ", m.await().name());
    case M::kEdgeReached:
      return absl::StrCat(GenerationAndRank("EdgeReached", m.edge_reached()), " id ",
                          m.edge_reached().id(), " step ", m.edge_reached().step());
    case M::kCheckpoint:
      return DescribeCheckpoint(m.checkpoint());
    case M::kWorkerResult:
      return GenerationAndRank("WorkerResult", m.worker_result());
    case M::kLeaving:
      return absl::StrCat("Leaving", m.leaving().planned() ? " as planned: " : ": ",
                          m.leaving().reason());
    case M::kWorkerStalled:
      return GenerationAndRank("WorkerStalled", m.worker_stalled());
    case M::kWorkersExamined:
      return absl::StrCat("WorkersExamined g", m.workers_examined().generation());
    case M::kWorkersSignalled:
      return absl::StrCat("WorkersSignalled g", m.workers_signalled().generation(), " signal ",
                          m.workers_signalled().signal());
    case M::kNodeUnhealthy:
      return absl::StrCat("NodeUnhealthy g", m.node_unhealthy().generation(), ": ",
                          m.node_unhealthy().reason());
    case M::kAnswer:
      return "Answer";
    case M::MESSAGE_NOT_SET:
      return "nothing";
  }
  return "?";
}

std::string DescribeOrder(const v1::CoordinatorMessage& m) {
  using M = v1::CoordinatorMessage;
  switch (m.message_case()) {
    case M::kWelcome:
      return absl::StrCat("Welcome link ", m.welcome().link());
    case M::kRefusal:
      return absl::StrCat("Refusal: ", m.refusal().reason());
    case M::kHeartbeatAnswer:
      return absl::StrCat("HeartbeatAnswer ", m.heartbeat_answer().sequence());
    case M::kStartWorkers: {
      const auto& start = m.start_workers();
      return absl::StrCat("StartWorkers g", start.generation(), " ranks ", start.first_rank(), "+",
                          start.local_world_size(), " of ", start.world_size(), " from step ",
                          start.resume_step());
    }
    case M::kStopWorkers:
      return absl::StrCat("StopWorkers g", m.stop_workers().generation(), " mode ",
                          m.stop_workers().mode(), ": ", m.stop_workers().reason());
    case M::kValue:
      return absl::StrCat(GenerationAndRank("Value", m.value()), " ", m.value().name(), "=",
                          m.value().value());
    case M::kExchangeRefused:
      return absl::StrCat(GenerationAndRank("ExchangeRefused", m.exchange_refused()), ": ",
                          m.exchange_refused().reason());
    case M::kEdgeRequest:
      return absl::StrCat("EdgeRequest g", m.edge_request().generation(), " id ",
                          m.edge_request().id(), m.edge_request().stop() ? " stop" : "");
    case M::kCheckpointAt:
      return absl::StrCat("CheckpointAt g", m.checkpoint_at().generation(), " id ",
                          m.checkpoint_at().id(), " step ", m.checkpoint_at().step(),
                          m.checkpoint_at().stop() ? " stop" : "");
    case M::kCheckpointSettled:
      return absl::StrCat("CheckpointSettled g", m.checkpoint_settled().generation(), " step ",
                          m.checkpoint_settled().step(),
                          m.checkpoint_settled().committed() ? " committed" : " dropped");
    case M::kSignalWorkers:
      return absl::StrCat("SignalWorkers g", m.signal_workers().generation());
    case M::kJobEnded:
      return absl::StrCat("JobEnded ", m.job_ended().status());
    case M::kExamineWorkers:
      return absl::StrCat("ExamineWorkers g", m.examine_workers().generation(), ": ",
                          m.examine_workers().reason());
    case M::kChallenge:
      return "Challenge";
    case M::kReleased:
      return absl::StrCat("Released: ", m.released().reason());
    case M::MESSAGE_NOT_SET:
      return "nothing";
  }
  return "?";
}

}  // namespace

void Trace::Line(int64_t now_ns, uint64_t number, std::string_view who, std::string_view what) {
  if (!on_) return;
  absl::StrAppendFormat(&text_, "%12.6f %6d %-12s %s\n", static_cast<double>(now_ns) / 1e9, number,
                        who, what);
}

std::string Describe(const v1::AgentMessage& message) {
  return absl::StrCat(DescribeFact(message), " #", message.sequence(), "/", message.ack());
}

std::string Describe(const v1::CoordinatorMessage& message) {
  return absl::StrCat(DescribeOrder(message), " #", message.sequence(), "/", message.ack());
}

}  // namespace ddprun::sim
