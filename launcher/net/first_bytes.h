// What a stranger speaks, told by its first bytes. Pure. Threads: any.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace ddprun::net {

enum class Speech {
  kUndecided,  // more bytes are needed
  kTls,        // a TLS record with a handshake
  kHttp2,      // HTTP/2's preface, as gRPC in plain text begins
  kHttp1,      // a web browser, or a health check
  kOther,
};

constexpr size_t kFirstBytesMax = 24;  // the preface
extern const absl::string_view kHttp2Preface;

Speech Recognise(absl::string_view first_bytes);

// An HTTP/2 answer in plain text that says `reason` and ends the connection: SETTINGS and GOAWAY.
std::string Http2Goodbye(absl::string_view reason);
std::string Http1Goodbye(absl::string_view reason);

// The text of the first GOAWAY in what an HTTP/2 server has said; "" none.
std::string GoodbyeOf(absl::string_view frames);

}  // namespace ddprun::net
