#include "launcher/agent/keeper_facts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/files.h"

namespace ddprun::agent {
namespace {

constexpr size_t kTailLinesMax = 30;
constexpr size_t kTailLineBytesMax = 400;
constexpr off_t kTailBytesMax = 32768;
constexpr uint64_t kShardFilesMax = 256;

const char* PhaseText(uint64_t phase) {
  static constexpr const char* kNames[] = {"starting",         "loading",    "connecting",
                                           "forward/backward", "optimizer",  "waiting for data",
                                           "checkpoint",       "evaluating", "ending"};
  return phase < std::size(kNames) ? kNames[phase] : "unknown";
}

uint32_t RankOf(const Packet& packet) {
  return static_cast<uint32_t>(packet.Unsigned("RANK").value_or(UINT32_MAX));
}

v1::WorkerFailed::Kind KindOf(const std::string& text) {
  if (text == "communication") return v1::WorkerFailed::COMMUNICATION;
  if (text == "config") return v1::WorkerFailed::CONFIG;
  return v1::WorkerFailed::ERROR;
}

void ReadShards(const Packet& packet, v1::CheckpointFact& fact) {
  const uint64_t count = std::min(packet.Unsigned("COUNT").value_or(0), kShardFilesMax);
  for (uint64_t i = 0; i < count; ++i) {
    const std::string text = packet.Text(absl::StrCat("FILE.", i)).value_or("");
    const size_t first = text.find(' '), second = text.rfind(' ');
    if (first == std::string::npos || first == second) continue;
    v1::ShardFile* file = fact.add_files();
    file->set_name(text.substr(0, first));
    file->set_bytes(std::strtoull(text.c_str() + first + 1, nullptr, 10));
    file->set_xxh3_128(text.substr(second + 1));
  }
}

std::optional<v1::CheckpointFact::What> CheckpointWhat(std::string_view type) {
  if (type == "CheckpointStarted") return v1::CheckpointFact::STARTED;
  if (type == "ShardsWritten") return v1::CheckpointFact::WRITTEN;
  if (type == "CheckpointSkipped") return v1::CheckpointFact::SKIPPED;
  if (type == "CheckpointFailed") return v1::CheckpointFact::FAILED;
  return std::nullopt;
}

std::optional<v1::AgentMessage> ProgressOf(const Packet& said, uint32_t rank,
                                           const WorkerNotes& notes) {
  if (rank != notes.first_rank) return std::nullopt;
  v1::AgentMessage message;
  auto* progress = message.mutable_worker_progressed();
  progress->set_generation(notes.generation);
  progress->set_rank(rank);
  progress->set_step(said.Unsigned("STEP").value_or(0));
  progress->set_epoch(said.Integer("EPOCH").value_or(0));
  progress->set_epochs(said.Integer("EPOCHS").value_or(0));
  progress->set_total_steps(said.Unsigned("TOTAL_STEPS").value_or(0));
  progress->set_loss(said.Number("LOSS").value_or(0));
  progress->set_samples_per_second(said.Number("SAMPLES_PER_S").value_or(0));
  return message;
}

// Publish, Await and Edge.
std::optional<v1::AgentMessage> ExchangeOf(const Packet& said, uint32_t rank,
                                           const WorkerNotes& notes) {
  v1::AgentMessage message;
  if (said.type() == "Publish") {
    auto* publish = message.mutable_publish();
    publish->set_generation(notes.generation);
    publish->set_rank(rank);
    publish->set_group(said.Text("GROUP").value_or(""));
    publish->set_name(said.Text("NAME").value_or(""));
    publish->set_value(said.Bytes("VALUE").value_or(""));
    return message;
  }
  if (said.type() == "Await") {
    auto* await = message.mutable_await();
    await->set_generation(notes.generation);
    await->set_rank(rank);
    await->set_group(said.Text("GROUP").value_or(""));
    await->set_name(said.Text("NAME").value_or(""));
    return message;
  }
  if (said.type() == "Edge") {
    auto* edge = message.mutable_edge_reached();
    edge->set_generation(notes.generation);
    edge->set_rank(rank);
    edge->set_id(said.Unsigned("ID").value_or(0));
    edge->set_step(said.Unsigned("STEP").value_or(0));
    return message;
  }
  return std::nullopt;
}

// One packet of a worker.
std::optional<v1::AgentMessage> WorkerSaid(const Packet& said, uint32_t rank, WorkerNotes& notes) {
  v1::AgentMessage message;
  if (said.type() == "Ready") {
    message.mutable_worker_ready()->set_generation(notes.generation);
    message.mutable_worker_ready()->set_rank(rank);
    return message;
  }
  if (said.type() == "Progress") return ProgressOf(said, rank, notes);
  if (said.type() == "Finished") {
    notes.finished.insert(rank);
    return std::nullopt;
  }
  if (said.type() == "Failed") {
    notes.said_failed.insert(rank);
    auto* failed = message.mutable_worker_failed();
    failed->set_generation(notes.generation);
    failed->set_rank(rank);
    failed->set_kind(KindOf(said.Text("KIND").value_or("error")));
    failed->set_message(said.Text("MESSAGE").value_or(""));
    timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    failed->set_time_ns(now.tv_sec * 1'000'000'000LL + now.tv_nsec);
    return message;
  }
  if (said.type() == "Result") {
    auto* result = message.mutable_worker_result();
    result->set_generation(notes.generation);
    result->set_rank(rank);
    for (const auto& [key, raw] : said.fields()) {
      (*result->mutable_values())[std::string(key)] = said.Text(key).value_or("");
    }
    return message;
  }
  if (auto what = CheckpointWhat(said.type())) {
    auto* fact = message.mutable_checkpoint();
    fact->set_generation(notes.generation);
    fact->set_rank(rank);
    fact->set_step(said.Unsigned("STEP").value_or(0));
    fact->set_what(*what);
    fact->set_reason(said.Text("REASON").value_or(""));
    if (*what == v1::CheckpointFact::WRITTEN) ReadShards(said, *fact);
    return message;
  }
  return ExchangeOf(said, rank, notes);
}

v1::AgentMessage ExitOf(const Packet& packet, const WorkerNotes& notes) {
  v1::AgentMessage message;
  auto* exited = message.mutable_worker_exited();
  const uint32_t rank = RankOf(packet);
  exited->set_generation(notes.generation);
  exited->set_rank(rank);
  exited->set_pid(static_cast<int32_t>(packet.Integer("PID").value_or(0)));
  exited->set_exit_code(static_cast<int32_t>(packet.Integer("CODE").value_or(0)));
  exited->set_signal(static_cast<int32_t>(packet.Integer("SIGNAL").value_or(0)));
  exited->set_time_ns(packet.Integer("TIME_NS").value_or(0));
  // Without a step page nothing is known of it; "starting" would be a guess.
  if (const auto phase = packet.Unsigned("PHASE")) exited->set_phase(PhaseText(*phase));
  exited->set_step(packet.Unsigned("STEP").value_or(0));
  exited->set_finished(notes.finished.contains(rank));
  exited->set_stopped_by_us(notes.stop_ordered_ns != 0 &&
                            exited->time_ns() >= notes.stop_ordered_ns);
  auto started = notes.started_ns.find(rank);
  if (started != notes.started_ns.end()) {
    exited->set_uptime_seconds(static_cast<double>(exited->time_ns() - started->second) / 1e9);
  }
  auto log = notes.log_paths.find(rank);
  if ((exited->exit_code() != 0 || exited->signal() != 0) && !EndedByOrder(*exited) &&
      log != notes.log_paths.end()) {
    for (std::string& line : LogTail(log->second)) exited->add_log_tail(std::move(line));
  }
  return message;
}

std::string EndOfFile(const std::string& path, off_t bytes_max) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  struct stat info = {};
  fstat(fd, &info);
  const off_t from = std::max<off_t>(info.st_size - bytes_max, 0);
  std::string text(static_cast<size_t>(info.st_size - from), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), from);
  close(fd);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// <path>.<N> with the highest N; "" when there is none.
std::string NewestRotated(const std::string& path) {
  uint64_t newest = 0;
  std::error_code error;
  std::filesystem::directory_iterator end, entry(ParentPath(path), error);
  for (; !error && entry != end; entry.increment(error)) {
    absl::string_view name = entry->path().native();
    uint64_t number = 0;
    if (absl::ConsumePrefix(&name, path) && absl::ConsumePrefix(&name, ".") &&
        absl::SimpleAtoi(name, &number)) {
      newest = std::max(newest, number);
    }
  }
  return newest == 0 ? "" : absl::StrCat(path, ".", newest);
}

}  // namespace

bool EndedByOrder(const v1::WorkerExited& exited) {
  const int signal = exited.signal();
  const int code = exited.exit_code();
  return exited.stopped_by_us() &&
         (signal == SIGTERM || signal == SIGKILL || signal == SIGINT || code == 128 + SIGTERM ||
          code == 128 + SIGKILL || code == 128 + SIGINT);
}

std::optional<v1::AgentMessage> FactOf(const Packet& packet, WorkerNotes& notes) {
  v1::AgentMessage message;
  const uint32_t rank = RankOf(packet);
  if (packet.type() == "Packet") {
    if (!packet.body()) return std::nullopt;
    std::optional<Packet> said = Packet::Parse(*packet.body(), nullptr);
    return said ? WorkerSaid(*said, rank, notes) : std::nullopt;
  }
  if (packet.type() == "Started") {
    auto* started = message.mutable_worker_started();
    started->set_generation(notes.generation);
    started->set_rank(rank);
    started->set_local_rank(rank - notes.first_rank);
    started->set_pid(static_cast<int32_t>(packet.Integer("PID").value_or(0)));
    started->set_time_ns(packet.Integer("TIME_NS").value_or(0));
    notes.started_ns[rank] = started->time_ns();
    return message;
  }
  if (packet.type() == "StartFailed") {
    auto* failed = message.mutable_worker_failed();
    failed->set_generation(notes.generation);
    failed->set_rank(rank);
    failed->set_kind(v1::WorkerFailed::START);
    failed->set_message(packet.Text("REASON").value_or("it could not be started"));
    failed->set_time_ns(1);  // before anything else of this generation
    return message;
  }
  if (packet.type() == "Exited") return ExitOf(packet, notes);
  if (packet.type() == "Stalled") {
    auto* stalled = message.mutable_worker_stalled();
    stalled->set_generation(notes.generation);
    stalled->set_rank(rank);
    stalled->set_seconds(packet.Number("SECONDS").value_or(0));
    *stalled->mutable_place() = PlaceOf(packet);
    return message;
  }
  if (packet.type() == "Signalled") {
    message.mutable_workers_signalled()->set_generation(notes.generation);
    message.mutable_workers_signalled()->set_signal(
        static_cast<int32_t>(packet.Integer("NUMBER").value_or(0)));
    return message;
  }
  return std::nullopt;
}

void NoteLeaseExpired(const Packet& packet, WorkerNotes& notes) {
  notes.lease_expired = true;
  const int64_t time_ns = packet.Integer("TIME_NS").value_or(0);
  if (time_ns == 0) return;
  // The agent's own order for the same reason may have been written down first, and carried out
  // last.
  if (notes.stop_ordered_ns == 0 || time_ns < notes.stop_ordered_ns) {
    notes.stop_ordered_ns = time_ns;
  }
}

v1::WorkerPlace PlaceOf(const Packet& packet) {
  v1::WorkerPlace place;
  place.set_rank(RankOf(packet));
  place.set_pid(static_cast<int32_t>(packet.Integer("PID").value_or(0)));
  place.set_speaks(packet.Text("STEP").has_value());
  place.set_seconds_still(static_cast<double>(packet.Integer("STILL_MS").value_or(0)) / 1000);
  if (!place.speaks()) return place;
  place.set_step(packet.Unsigned("STEP").value_or(0));
  place.set_phase(PhaseText(packet.Unsigned("PHASE").value_or(0)));
  const std::string text = packet.Text("TEXT").value_or("");
  if (!text.empty()) place.set_phase(absl::StrCat(place.phase(), " (", text, ")"));
  place.set_collective(packet.Text("COLLECTIVE").value_or(""));
  place.set_collective_started(packet.Unsigned("COLLECTIVE_STARTED").value_or(0));
  place.set_collective_finished(packet.Unsigned("COLLECTIVE_FINISHED").value_or(0));
  return place;
}

std::optional<std::string> WorkerPacketOf(const v1::CoordinatorMessage& message, int64_t* rank) {
  using M = v1::CoordinatorMessage;
  *rank = -1;
  switch (message.message_case()) {
    case M::kValue: {
      const auto& value = message.value();
      *rank = value.rank();
      return PacketWriter("Value")
          .Text("GROUP", value.group())
          .Text("NAME", value.name())
          .Bytes("VALUE", value.value())
          .Finish();
    }
    case M::kExchangeRefused: {
      const auto& refused = message.exchange_refused();
      *rank = refused.rank();
      return PacketWriter("Refused")
          .Text("GROUP", refused.group())
          .Text("NAME", refused.name())
          .Text("REASON", refused.reason())
          .Finish();
    }
    case M::kEdgeRequest:
      return PacketWriter("EdgeRequest")
          .Unsigned("ID", message.edge_request().id())
          .Text("PURPOSE", message.edge_request().stop() ? "stop" : "checkpoint")
          .Finish();
    case M::kCheckpointAt:
      return PacketWriter("CheckpointAt")
          .Unsigned("ID", message.checkpoint_at().id())
          .Unsigned("STEP", message.checkpoint_at().step())
          .Text("PURPOSE", message.checkpoint_at().stop() ? "stop" : "checkpoint")
          .Finish();
    case M::kCheckpointSettled: {
      const auto& settled = message.checkpoint_settled();
      PacketWriter writer(settled.committed() ? "CheckpointCommitted" : "CheckpointDropped");
      writer.Unsigned("STEP", settled.step());
      if (!settled.committed()) writer.Text("REASON", settled.reason());
      return writer.Finish();
    }
    default:
      return std::nullopt;
  }
}

std::string StopPacketOf(const v1::StopWorkers& order) {
  const char* mode = order.mode() == v1::StopWorkers::ABORT  ? "abort"
                     : order.mode() == v1::StopWorkers::STOP ? "stop"
                                                             : "kill";
  PacketWriter writer("Stop");
  writer.Text("MODE", mode).Text("REASON", order.reason());
  if (order.grace_seconds() > 0) {
    writer.Integer("GRACE_MS", static_cast<int64_t>(order.grace_seconds() * 1000));
  }
  return writer.Finish();
}

std::string LogEnd(const std::string& path, size_t bytes_max) {
  std::string text = EndOfFile(path, static_cast<off_t>(bytes_max));
  const off_t room = static_cast<off_t>(bytes_max - text.size());
  if (room > 0) text.insert(0, EndOfFile(NewestRotated(path), room));  // it was rotated lately
  return text;
}

std::vector<std::string> LogTail(const std::string& path) {
  std::vector<std::string> lines;
  const std::string text = LogEnd(path, kTailBytesMax);
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find_first_of("\n\r", begin);
    if (end == std::string::npos) end = text.size();
    if (end > begin) lines.push_back(text.substr(begin, std::min(end - begin, kTailLineBytesMax)));
    begin = end + 1;
  }
  if (lines.size() > kTailLinesMax) lines.erase(lines.begin(), lines.end() - kTailLinesMax);
  return lines;
}

}  // namespace ddprun::agent
