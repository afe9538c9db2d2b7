// What the agent may say to a keeper (proto/keeper_protocol.md), and what its silence means.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>

#include "common/packet.h"
#include "launcher/keeper/clock.h"
#include "launcher/keeper/keeper.h"

namespace ddprun::keeper {
namespace {

std::optional<StopMode> ParseStopMode(const std::optional<std::string>& text) {
  if (text == "stop") return StopMode::kStop;
  if (text == "abort") return StopMode::kAbort;
  if (text == "kill") return StopMode::kKill;
  return std::nullopt;
}

int64_t DurationNs(int64_t ms) {
  return std::clamp<int64_t>(ms, 0, kDurationMsMax) * kMillisecond;
}

void TellVoid(std::string_view type, const char* why) {
  fprintf(stderr, "ddprun-keeper: the agent's packet '%.*s' is void: %s\n",
          static_cast<int>(type.size()), type.data(), why);
}

std::optional<StopEvent> ParseStop(const Packet& packet) {
  const std::optional<StopMode> mode = ParseStopMode(packet.Text("MODE"));
  if (!mode) return std::nullopt;
  StopEvent event{.kind = EventKind::kOrder, .mode = *mode};
  if (const std::optional<int64_t> grace_ms = packet.Integer("GRACE_MS")) {
    event.duration_ns = DurationNs(*grace_ms);
  }
  return event;
}

// UNTIL_NS, a moment on the lease's clock, is stricter than MS: it also counts the time that the
// packet waited.
std::optional<StopEvent> ParseLease(const Packet& packet, int64_t now_ns) {
  StopEvent event{.kind = EventKind::kLease};
  if (const std::optional<int64_t> until_ns = packet.Integer("UNTIL_NS")) {
    event.duration_ns = std::max<int64_t>(*until_ns - now_ns, 1);
    return event;
  }
  const std::optional<int64_t> ms = packet.Integer("MS");
  if (!ms) return std::nullopt;
  event.duration_ns = DurationNs(*ms);
  return event;
}

}  // namespace

void Keeper::Obey(std::string_view bytes) {
  std::string problem;
  const std::optional<Packet> packet = Packet::Parse(bytes, &problem);
  if (!packet) return TellVoid("?", problem.c_str());
  if (packet->type() == "Packet") {
    const std::optional<int64_t> rank = packet->Integer("RANK");
    if (!rank || !packet->body()) return TellVoid("Packet", "it needs RANK and a body");
    for (Worker& worker : workers_) {
      if (worker.rank() == *rank) worker.Send(std::string(*packet->body()));
    }
  } else if (packet->type() == "Stop") {
    const std::optional<StopEvent> event = ParseStop(*packet);
    if (!event) return TellVoid("Stop", "MODE must be abort, stop or kill");
    stop_reason_ = packet->Text("REASON").value_or("");
    Decide(*event);
  } else if (packet->type() == "Signal") {
    const int64_t number = packet->Integer("NUMBER").value_or(0);
    if (number < 1 || number > SIGRTMAX) return TellVoid("Signal", "NUMBER is no signal");
    PassSignal(static_cast<int>(number));
  } else if (packet->type() == "Examine") {
    TellPlaces();
  } else if (packet->type() == "Lease") {
    const std::optional<StopEvent> event = ParseLease(*packet, Now());
    if (!event) return TellVoid("Lease", "it needs MS");
    Decide(*event);
  }
}

void Keeper::NoticeAgentGone() {
  if (agent_.connected() || agent_seen_gone_) return;
  agent_seen_gone_ = true;
  if (!spec_->foreground) return;  // the lease, or the workers' own end, ends it
  stop_reason_ = "the agent is gone";
  Decide({.kind = EventKind::kOrder, .mode = StopMode::kKill});
}

}  // namespace ddprun::keeper
