#include "common/packet.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "common/wire.h"

namespace ddprun {
namespace {

bool IsKey(std::string_view key) {
  if (key.empty()) return false;
  for (char c : key) {
    const bool allowed = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '.';
    if (!allowed) return false;
  }
  return true;
}

template <typename Value>
std::string_view Format(Value value, char (&buffer)[40]) {
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string_view(buffer, static_cast<size_t>(end.ptr - buffer));
}

template <typename Value>
std::optional<Value> Scan(std::optional<std::string_view> text) {
  if (!text || text->empty()) return std::nullopt;
  Value value{};
  const std::from_chars_result end =
      std::from_chars(text->data(), text->data() + text->size(), value);
  if (end.ec != std::errc() || end.ptr != text->data() + text->size()) return std::nullopt;
  return value;
}

std::nullopt_t Fail(std::string* problem, std::string_view text) {
  if (problem != nullptr) *problem = text;
  return std::nullopt;
}

}  // namespace

PacketWriter::PacketWriter(std::string_view type) {
  Text("TYPE", type);
}

PacketWriter& PacketWriter::Text(std::string_view key, std::string_view value) {
  if (!IsKey(key)) abort();
  bytes_.append(key).push_back('=');
  const size_t begin = bytes_.size();
  bytes_.resize(begin + 2 * value.size());  // every character escaped
  const size_t size =
      ddprun_wire_escape(value.data(), value.size(), bytes_.data() + begin, 2 * value.size());
  bytes_.resize(begin + size);
  bytes_.push_back('\n');
  return *this;
}

PacketWriter& PacketWriter::Integer(std::string_view key, int64_t value) {
  char buffer[40];
  return Text(key, Format(value, buffer));
}

PacketWriter& PacketWriter::Unsigned(std::string_view key, uint64_t value) {
  char buffer[40];
  return Text(key, Format(value, buffer));
}

PacketWriter& PacketWriter::Number(std::string_view key, double value) {
  char buffer[40];
  return Text(key, Format(value, buffer));
}

PacketWriter& PacketWriter::Bytes(std::string_view key, std::string_view value) {
  std::string text((value.size() + 2) / 3 * 4 + 1, '\0');
  text.resize(ddprun_wire_base64_encode(value.data(), value.size(), text.data(), text.size()));
  return Text(key, text);
}

std::string PacketWriter::Finish() {
  return std::exchange(bytes_, std::string());
}

std::string PacketWriter::FinishWithBody(std::string_view body) {
  bytes_.push_back('\n');
  bytes_.append(body);
  return Finish();
}

std::optional<Packet> Packet::Parse(std::string_view bytes, std::string* problem) {
  Packet packet;
  bool first = true;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return Fail(problem, "its last line has no line feed");
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (line.empty() && !first) {
      packet.body_ = bytes;
      break;
    }
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || !IsKey(line.substr(0, equals))) {
      return Fail(problem, "a line is not KEY=VALUE");
    }
    const std::string_view value = line.substr(equals + 1);
    if (first) {
      if (line.substr(0, equals) != "TYPE" || value.empty()) {
        return Fail(problem, "its first line is not TYPE=<name>");
      }
      packet.type_ = value;
      first = false;
    } else {
      packet.fields_.emplace_back(line.substr(0, equals), value);
    }
  }
  if (first) return Fail(problem, "it is empty");
  return packet;
}

std::optional<std::string_view> Packet::Raw(std::string_view key) const {
  for (const auto& [name, value] : fields_) {
    if (name == key) return value;
  }
  return std::nullopt;
}

bool Packet::Has(std::string_view key) const {
  return Raw(key).has_value();
}

std::optional<std::string> Packet::Text(std::string_view key) const {
  const std::optional<std::string_view> raw = Raw(key);
  if (!raw) return std::nullopt;
  std::string text(raw->size(), '\0');
  const size_t size = ddprun_wire_unescape(raw->data(), raw->size(), text.data(), text.size());
  if (size == static_cast<size_t>(-1)) return std::nullopt;
  text.resize(size);
  return text;
}

std::optional<int64_t> Packet::Integer(std::string_view key) const {
  return Scan<int64_t>(Raw(key));
}

std::optional<uint64_t> Packet::Unsigned(std::string_view key) const {
  return Scan<uint64_t>(Raw(key));
}

std::optional<double> Packet::Number(std::string_view key) const {
  return Scan<double>(Raw(key));
}

std::optional<std::string> Packet::Bytes(std::string_view key) const {
  const std::optional<std::string_view> raw = Raw(key);
  if (!raw) return std::nullopt;
  std::string value(raw->size() / 4 * 3 + 3, '\0');
  const size_t size =
      ddprun_wire_base64_decode(raw->data(), raw->size(), value.data(), value.size());
  if (size == static_cast<size_t>(-1)) return std::nullopt;
  value.resize(size);
  return value;
}

}  // namespace ddprun
