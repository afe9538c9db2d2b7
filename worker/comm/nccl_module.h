// What ddp-worker looks up in libddp_worker_cuda.so. Both are built together from one source tree,
// with one compiler and one abseil, so C++ types may cross.
#pragma once

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace ddprun {

inline constexpr char kCreateNcclSymbol[] = "ddprun_create_nccl_communicator";
inline constexpr char kCurrentStreamSymbol[] = "ddprun_current_cuda_stream";
inline constexpr char kDeviceNameSymbol[] = "ddprun_cuda_device_name";

// Returns a communicator that the caller owns, or nullptr and the reason in *status.
using CreateNcclFunction = Communicator*(const CommunicatorOptions* options,
                                         const Exchange* exchange, absl::Status* status);
// The cudaStream_t on which LibTorch queues the calling thread's work on that device.
using CurrentStreamFunction = void*(int device);
// Lives as long as the process.
using DeviceNameFunction = const char*(int device);

}  // namespace ddprun
