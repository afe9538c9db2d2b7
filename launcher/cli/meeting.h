// Where the nodes of a job meet, as typed: --coordinator, or torchrun's --rdzv-endpoint,
// --master-addr and --master-port; and what the options alone say about who hosts. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {

struct Meeting {
  std::string option;  // that says it, for messages
  std::string host;    // without brackets
  uint16_t port = 0;
  // By the options alone: this node hosts, or does not; nullopt: the node that owns the address.
  std::optional<bool> hosts;

  std::string Endpoint() const;  // HOST:PORT
  std::string Typed() const;     // "--coordinator 10.0.0.1:29400"
};

// Whether the options speak of several nodes (--nnodes, or --resume with --coordinator). A
// coordinator's always may.
bool SeveralNodes(const Options& options);

// INVALID_ARGUMENT: no place to meet is given, or one where several nodes cannot.
absl::StatusOr<Meeting> MeetingOf(const Options& options);

// INVALID_ARGUMENT: the address is no single machine's (0.0.0.0, ::, multicast …).
absl::Status CheckSomebodys(const Meeting& meeting);

// "2", "2:4"
std::string NodesText(const Options& options);

}  // namespace ddprun::cli
