// Packets of the worker and keeper protocols (proto/worker_protocol.md, proto/keeper_protocol.md):
// lines KEY=VALUE, TYPE first, then, for some types, an empty line and raw bytes.
//
// Threads: values without shared state; use one from one thread at a time.
// Invariants:
//  1. A Packet only points into the bytes it was parsed from. REQUIRES: these bytes outlive it.
//  2. Every packet that a PacketWriter makes is read back by Packet::Parse with equal fields and
//  body.
// No exceptions of our own and no absl, since the static keeper links this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun {

// Largest packet between keeper and agent: a worker packet (64 KiB) and its header, or 64 KiB of
// output, with room to spare.
inline constexpr size_t kControlPacketBytesMax = 131072;

class PacketWriter {
 public:
  explicit PacketWriter(std::string_view type);
  // Each adds one line. Keys are [A-Za-z0-9_.]+ (our own constants: another one is a bug and ends
  // the process).
  PacketWriter& Text(std::string_view key, std::string_view value);
  PacketWriter& Integer(std::string_view key, int64_t value);
  PacketWriter& Unsigned(std::string_view key, uint64_t value);
  PacketWriter& Number(std::string_view key, double value);  // shortest text that reads back equal
  PacketWriter& Bytes(std::string_view key, std::string_view value);  // base64
  // The finished packet; the writer is empty afterwards.
  std::string Finish();
  std::string FinishWithBody(std::string_view body);

 private:
  std::string bytes_;
};

class Packet {
 public:
  // nullopt and one sentence in *problem (may be null) when the bytes are no packet.
  static std::optional<Packet> Parse(std::string_view bytes, std::string* problem);

  std::string_view type() const { return type_; }
  // The bytes after the empty line; nullopt when there is none.
  const std::optional<std::string_view>& body() const { return body_; }
  // Keys in order, TYPE left out, values still escaped.
  const std::vector<std::pair<std::string_view, std::string_view>>& fields() const {
    return fields_;
  }

  bool Has(std::string_view key) const;
  // nullopt: missing, or not of that form. The first of several equal keys counts.
  std::optional<std::string> Text(std::string_view key) const;
  std::optional<int64_t> Integer(std::string_view key) const;
  std::optional<uint64_t> Unsigned(std::string_view key) const;
  std::optional<double> Number(std::string_view key) const;
  std::optional<std::string> Bytes(std::string_view key) const;

 private:
  std::optional<std::string_view> Raw(std::string_view key) const;

  std::string_view type_;
  std::vector<std::pair<std::string_view, std::string_view>> fields_;
  std::optional<std::string_view> body_;
};

}  // namespace ddprun
