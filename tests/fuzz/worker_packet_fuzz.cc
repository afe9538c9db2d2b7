// libFuzzer target: packets of workers, as the keeper checks them and the agent reads them.
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/packet.h"
#include "launcher/keeper/worker_packet.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ddprun;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const bool said_hello : {false, true}) {
    const keeper::WorkerPacketCheck check = keeper::CheckWorkerPacket(bytes, 42, said_hello);
    if (check.is_hello && !check.problem.empty()) std::abort();
  }
  std::string problem;
  const std::optional<Packet> packet = Packet::Parse(bytes, &problem);
  if (packet.has_value() == !problem.empty()) std::abort();
  if (!packet) return 0;
  // A writer gives names to its packets; what a worker may call one is wider.
  for (const char c : packet->type()) {
    if (isalnum(static_cast<unsigned char>(c)) == 0) return 0;
  }
  // What was read is written and read again without a difference.
  PacketWriter writer(packet->type());
  for (const auto& [key, raw] : packet->fields()) {
    packet->Integer(key);
    packet->Unsigned(key);
    packet->Number(key);
    packet->Bytes(key);
    if (const std::optional<std::string> text = packet->Text(key)) writer.Text(key, *text);
  }
  const std::string again =
      packet->body() ? writer.FinishWithBody(*packet->body()) : writer.Finish();
  const std::optional<Packet> second = Packet::Parse(again, nullptr);
  if (!second || second->type() != packet->type() || second->body() != packet->body()) std::abort();
  for (const auto& [key, raw] : second->fields()) {
    if (second->Text(key) != packet->Text(key)) std::abort();
  }
  return 0;
}
