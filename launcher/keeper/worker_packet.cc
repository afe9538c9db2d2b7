#include "launcher/keeper/worker_packet.h"

#include <optional>

#include "common/packet.h"
#include "common/wire.h"

namespace ddprun::keeper {
namespace {

struct RequiredKeys {
  std::string_view type;
  std::string_view keys[3];
};

constexpr RequiredKeys kRequired[] = {
    {"Hello", {"PROTOCOL", "PID"}},
    {"Progress", {"STEP"}},
    {"Publish", {"GROUP", "NAME", "VALUE"}},
    {"Await", {"GROUP", "NAME"}},
    {"Edge", {"ID", "STEP"}},
    {"CheckpointStarted", {"STEP"}},
    {"ShardsWritten", {"STEP", "COUNT"}},
    {"CheckpointSkipped", {"STEP", "REASON"}},
    {"CheckpointFailed", {"STEP", "REASON"}},
    {"Failed", {"KIND", "MESSAGE"}},
};
constexpr int64_t kProtocolVersion = 1;

std::string MissingKey(const Packet& packet) {
  for (const RequiredKeys& row : kRequired) {
    if (row.type != packet.type()) continue;
    for (std::string_view key : row.keys) {
      if (!key.empty() && !packet.Has(key)) {
        return std::string(row.type) + " lacks " + std::string(key);
      }
    }
  }
  return "";
}

std::string HelloProblem(const Packet& packet, pid_t pid, bool said_hello) {
  if (said_hello) return "a second Hello";
  if (packet.Integer("PID") != pid) {
    return "Hello with PID=" + packet.Text("PID").value_or("") + " from process " +
           std::to_string(pid);
  }
  if (packet.Integer("PROTOCOL") != kProtocolVersion) {
    return "protocol version " + packet.Text("PROTOCOL").value_or("") +
           ", while this keeper speaks 1: use a libddprun of the same version as ddprun";
  }
  return "";
}

}  // namespace

WorkerPacketCheck CheckWorkerPacket(std::string_view bytes, pid_t pid, bool said_hello) {
  WorkerPacketCheck check;
  if (bytes.size() > kDdprunPacketBytesMax) {
    check.problem = "longer than " + std::to_string(kDdprunPacketBytesMax) + " bytes";
    return check;
  }
  const std::optional<Packet> packet = Packet::Parse(bytes, &check.problem);
  if (!packet) return check;
  check.problem = MissingKey(*packet);
  if (!check.problem.empty()) return check;
  if (packet->type() == "Hello") {
    check.problem = HelloProblem(*packet, pid, said_hello);
    check.is_hello = check.problem.empty();
  } else if (!said_hello) {
    check.problem = std::string(packet->type()) + " before Hello";
  }
  return check;
}

}  // namespace ddprun::keeper
