// The keeper's spec of one generation on this node: programs, environments, log paths
// (proto/keeper_protocol.md, DESIGN 4.4). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "ddprun/v1/agent.pb.h"
#include "launcher/agent/worker_environment.h"

namespace ddprun::agent {

// What torchrun makes of a program's argument (Python's string.Template): $local_rank and
// ${local_rank} are the number, $$ is one $, any other $ stays.
std::string SubstituteLocalRank(const std::string& argument, uint32_t local_rank);
std::string LogPath(const v1::StartWorkers& order, uint32_t rank);
bool ShownOnConsole(const v1::JobSpec& spec, uint32_t rank, uint32_t local_rank);
// `lease_until_ns`: on the keeper's clock (NodeFacts.lease_monotonic says which); 0: no lease.
std::string MakeKeeperSpec(const v1::StartWorkers& order, const NodeFacts& node,
                           int64_t lease_until_ns);

}  // namespace ddprun::agent
