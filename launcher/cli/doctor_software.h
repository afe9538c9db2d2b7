// Checks of what workers run on: NVIDIA's driver and GPUs, the built-in trainer with its libraries,
// and the Python of programs. The judgements are pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/doctor_finding.h"
#include "launcher/cli/doctor_world.h"

namespace ddprun::doctor {

struct Driver {
  std::string version;                         // "" without a driver
  std::string looked_at;                       // what was found where
  bool gpu_on_bus = false;                     // a GPU of NVIDIA's is on the PCI bus
  std::vector<std::string> gpus;               // their models
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES
  std::string cuda;                            // that the built-in trainer was built with; "" none
};
std::vector<Finding> JudgeDriver(const Driver& driver);
Outcome CheckDriver(const World& world);

struct Worker {
  std::string path;
  bool there = false;
  std::map<std::string, std::string> versions;  // of the file beside it
  bool timed_out = false;
  int exit_code = 0;
  std::string output;  // of a start that only shows its version
};
// Of `ddp-worker.versions`: KEY=VALUE, keys in small letters.
std::map<std::string, std::string> ReadVersions(const World& world);
Finding JudgeWorker(const Worker& worker);
Outcome CheckWorker(const World& world);

struct Python {
  std::string path;     // "" when none is on PATH
  bool wished = false;  // PYTHON_EXEC
  bool timed_out = false;
  int exit_code = 0;
  std::string output;  // "3.11.2 torch=2.11.0+cu130 cuda=13.0 …"
};
Finding JudgePython(const Python& python);
Outcome CheckPython(const World& world);

// The oldest driver, as its first number, that runs programs of this CUDA; 0: not known.
int OldestDriverFor(const std::string& cuda);

}  // namespace ddprun::doctor
