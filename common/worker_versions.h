// libtorch, cuda, nccl: what the build wrote down beside ddp-worker (ddp-worker.versions, lines
// KEY=VALUE). They must be equal on all nodes of a job of the built-in trainer, and stand in its
// job.json. Any thread.
#pragma once

#include <map>
#include <string>

namespace ddprun {

// Empty where there is no such file: then nothing is compared.
std::map<std::string, std::string> ReadWorkerVersions(const std::string& worker_path);

}  // namespace ddprun
