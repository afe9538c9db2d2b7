// Which GPUs CUDA shows to a process, and which of them a job uses: CUDA_VISIBLE_DEVICES and
// --gpus. Pure.
//
// CUDA's rules: entries are indices, UUIDs of GPUs (a unique beginning is enough) or of MIG
// instances; the first entry that names no device ends the list; one named twice empties it. A GPU
// in MIG mode is not usable whole: what counts is its first instance, and a process sees only one
// instance at all.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/placement/gpus.h"

namespace ddprun::placement {

struct VisibleDevice {
  std::string token;  // names it in CUDA_VISIBLE_DEVICES
  std::string uuid;   // full; "" where it is not known
  int gpu = -1;       // place in the list of GPUs; -1: not known
  bool slice = false;
};

// What a process started with CUDA_VISIBLE_DEVICES = `variable` (nullopt: not set) sees, in CUDA's
// order.
std::vector<VisibleDevice> VisibleDevices(const GpuList& list,
                                          const std::optional<std::string>& variable);

// The wished ones (by position among the visible, or by UUID or its beginning), in the order of the
// wish; all where it is empty. INVALID_ARGUMENT when one is not visible.
absl::StatusOr<std::vector<VisibleDevice>> ChooseDevices(const GpuList& list,
                                                         const std::optional<std::string>& variable,
                                                         const std::vector<std::string>& wished);

// The value of CUDA_VISIBLE_DEVICES that shows just these. `bus_order`: CUDA_DEVICE_ORDER is
// PCI_BUS_ID. CUDA does not promise to read a mixture of indices and UUIDs, and numbers GPUs of
// different models by speed: then all are named by UUID.
std::string VisibleVariable(const GpuList& list, const std::vector<VisibleDevice>& devices,
                            bool bus_order);

// True when an index means the same GPU to CUDA and to the driver.
bool SameOrder(const GpuList& list, bool bus_order);

}  // namespace ddprun::placement
