// What a node itself brings into a job, beside its slots: where it is reached, the environment of
// its workers, its GPUs, and the versions of what the trainer is made of.
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

// libtorch, cuda, nccl: what the build wrote down beside ddp-worker (ddp-worker.versions, lines
// KEY=VALUE). Empty where there is no such file: then nothing is compared.
std::map<std::string, std::string> ReadWorkerVersions(const std::string& worker_path);

}  // namespace ddprun::agent
