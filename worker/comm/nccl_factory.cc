// The entry into libddp_worker_cuda.so.
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/nccl_module.h"

namespace ddprun {
namespace {

int CollectNccl(dl_phdr_info* info, size_t, void* found) {
  const std::string path = info->dlpi_name;
  if (absl::StrContains(path, "libnccl.so"))
    static_cast<std::set<std::string>*>(found)->insert(path);
  return 0;
}

std::string Version(int code) {
  return absl::StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

// One NCCL, of the version that this was compiled for (TR44): LibTorch's copy and another one would
// not know of each other's communicators, and the configuration's layout depends on the version.
absl::Status CheckNccl() {
  std::set<std::string> found;
  dl_iterate_phdr(&CollectNccl, &found);
  if (found.size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("two copies of NCCL are loaded: ", absl::StrJoin(found, ", "),
                     "; remove one from LD_LIBRARY_PATH or LD_PRELOAD"));
  }
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL ", Version(version), " is loaded (", absl::StrJoin(found, ", "),
                     "), ddprun was built for ", Version(NCCL_VERSION_CODE),
                     "; build again (./scripts/build.sh)"));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return absl::UnavailableError(
        absl::StrCat("there is no usable GPU: CUDA says: ", cudaGetErrorString(error)));
  }
  if (device < 0 || device >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no CUDA device ", device, "; this process sees ", count));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ddprun

extern "C" __attribute__((visibility("default"))) ddprun::Communicator*
ddprun_create_nccl_communicator(const ddprun::CommunicatorOptions* options,
                                const ddprun::Exchange* exchange, absl::Status* status) {
  *status = ddprun::CheckDevice(options->device);
  if (status->ok()) *status = ddprun::CheckNccl();
  if (!status->ok()) {
    *status = absl::Status(status->code(), absl::StrCat("communicator '", options->name,
                                                        "' (nccl): ", status->message()));
    return nullptr;
  }
  auto communicator = std::make_unique<ddprun::NcclCommunicator>(*options);
  *status = communicator->Connect(*exchange);
  if (!status->ok()) return nullptr;
  if (options->rank == 0) {
    std::fprintf(stderr, "communicator '%s': NCCL %s, %d ranks\n", options->name.c_str(),
                 ddprun::Version(NCCL_VERSION_CODE).c_str(), options->size);
  }
  return communicator.release();
}
