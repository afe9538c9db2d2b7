// What a node itself brings into a job, beside its slots: where it is reached, the environment of
// its workers, and its GPUs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/v1/agent.pb.h"

namespace ddprun::agent {

struct NodeOwn {
  std::string address;         // where peers reach its workers
  std::string interface;       // network card of it, for people; "" where it is not known
  bool several_nodes = false;  // the job's workers may be on several nodes
  // Of the workers, before the launcher's own variables; nullopt: the job's.
  std::optional<std::map<std::string, std::string>> environment;
  std::vector<std::string> gpus;  // as JobSpec.gpus; empty: the job's choice
};

// What the node itself brings takes the place of the job's.
void UseOwn(const NodeOwn& own, v1::StartWorkers* order);

// The card that has this numeric address; "" where none has.
std::string InterfaceOf(const std::string& address);

}  // namespace ddprun::agent
