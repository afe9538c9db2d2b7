// Why a connection to a coordinator does not come about: one line for people.
//
// Connects once by itself, without gRPC (whose errors do not say it), speaks TLS or HTTP/2 as the
// channel would, and looks at what comes back. Called when the channel has failed; takes at most
// kDiagnoseSeconds. Threads: any; blocks.
#pragma once

#include <string>

#include "launcher/net/security.h"

namespace ddprun::net {

constexpr double kDiagnoseSeconds = 2;

struct Diagnosis {
  // It cannot get better by waiting: plain text to TLS or the reverse, a certificate that is not
  // trusted, for another name or expired, no ddprun there.
  bool final = false;
  std::string text;  // "" where nothing is wrong
};

// `endpoint`: HOST:PORT or [IPv6]:PORT. `name`: what the certificate must be for; "": HOST.
Diagnosis Diagnose(const std::string& endpoint, const Security& security,
                   const std::string& name = "");

}  // namespace ddprun::net
