// Values of torchrun's own options. Each error says what is expected, or what cannot be had and
// what to do instead. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {

// 0 to 3, or 0:3,1:0 for local ranks.
absl::StatusOr<StreamChoice> ParseStreams(const std::string& text);
// What is shown of a local rank: 3 both streams, 0 none, else one of them. As torchrun has it,
// --tee wins over --redirects.
int ShownStreams(const TorchrunOptions& options, uint32_t local_rank);
// 0,1,2
absl::StatusOr<std::vector<uint32_t>> ParseLocalRanks(const std::string& text);
// HOST, HOST:PORT, [IPv6]:PORT, [IPv6]. A port may be 0.
absl::StatusOr<std::string> ParseEndpoint(const std::string& text);
struct HostAndPort {
  std::string host;   // without brackets
  uint32_t port = 0;  // 0: none given
};
HostAndPort SplitEndpoint(const std::string& endpoint);
// A host's name or numeric address, without brackets.
absl::StatusOr<std::string> ParseHost(const std::string& text);

absl::Status SetRendezvousBackend(const std::string& text, Options* options);
absl::Status SetRendezvousConfiguration(const std::string& text, Options* options);
absl::Status SetMonitorInterval(const std::string& text, Options* options);
absl::Status CheckStartMethod(const std::string& text);
absl::Status CheckEventHandler(const std::string& text);

}  // namespace ddprun::cli
