#include "launcher/net/first_bytes.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ddprun::net {

const absl::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

namespace {

constexpr size_t kFrameHeadBytes = 9;
constexpr char kSettings = 4;
constexpr char kGoaway = 7;
constexpr char kInadequateSecurity = 0xc;

std::string Frame(char type, absl::string_view payload) {
  std::string frame;
  for (int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(type);
  frame.append(5, '\0');  // no flags, the connection itself
  return absl::StrCat(frame, payload);
}

}  // namespace

Speech Recognise(absl::string_view bytes) {
  if (bytes.empty()) return Speech::kUndecided;
  if (bytes[0] == 0x16) {
    if (bytes.size() < 2) return Speech::kUndecided;
    return bytes[1] == 0x03 ? Speech::kTls : Speech::kOther;
  }
  const size_t common = std::min(bytes.size(), kHttp2Preface.size());
  if (bytes.substr(0, common) == kHttp2Preface.substr(0, common)) {
    return common == kHttp2Preface.size() ? Speech::kHttp2 : Speech::kUndecided;
  }
  for (absl::string_view method : {"GET ", "HEAD ", "POST ", "PUT ", "OPTIONS ", "CONNECT "}) {
    if (absl::StartsWith(bytes, method)) return Speech::kHttp1;
    if (absl::StartsWith(method, bytes)) return Speech::kUndecided;
  }
  return Speech::kOther;
}

std::string Http2Goodbye(absl::string_view reason) {
  std::string payload(7, '\0');  // no stream was handled
  payload.push_back(kInadequateSecurity);
  return absl::StrCat(Frame(kSettings, ""), Frame(kGoaway, absl::StrCat(payload, reason)));
}

std::string Http1Goodbye(absl::string_view reason) {
  return absl::StrCat(
      "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
      "Content-Length: ",
      reason.size() + 1, "\r\n\r\n", reason, "\n");
}

std::string GoodbyeOf(absl::string_view frames) {
  while (frames.size() >= kFrameHeadBytes) {
    size_t bytes = 0;
    for (size_t i = 0; i < 3; ++i) bytes = bytes << 8 | static_cast<uint8_t>(frames[i]);
    const char type = frames[3];
    frames.remove_prefix(kFrameHeadBytes);
    if (frames.size() < bytes) return "";
    if (type == kGoaway && bytes >= 8) return std::string(frames.substr(8, bytes - 8));
    frames.remove_prefix(bytes);
  }
  return "";
}

}  // namespace ddprun::net
