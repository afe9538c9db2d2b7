// Opens libddp_worker_cuda.so on first use, so that a process without a GPU needs neither CUDA nor
// NCCL.
#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_module.h"

namespace ddprun {
namespace {

constexpr char kLibrary[] = "libddp_worker_cuda.so";

// Beside the program as it is installed: <prefix>/bin/ddp-worker,
// <prefix>/lib/libddp_worker_cuda.so.
std::string LibraryPath() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  const size_t slash = program.rfind('/');
  return absl::StrCat(slash == std::string::npos ? "." : program.substr(0, slash), "/../lib/",
                      kLibrary);
}

struct Module {
  absl::Status status;
  CreateNcclFunction* create = nullptr;
  CurrentStreamFunction* current_stream = nullptr;
  DeviceNameFunction* device_name = nullptr;
};

Module OpenModule() {
  Module module;
  const std::string path = LibraryPath();
  // Global, as LibTorch's CUDA part expects to be loaded; never closed, since it registers kernels.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* error = dlerror();
    module.status = absl::NotFoundError(absl::StrCat(
        "cannot open the GPU part of the worker, ", path, ": ", error == nullptr ? "" : error,
        "; install the whole wheel set and build again (./scripts/build.sh), or use --device cpu"));
    return module;
  }
  module.create = reinterpret_cast<CreateNcclFunction*>(dlsym(library, kCreateNcclSymbol));
  module.current_stream =
      reinterpret_cast<CurrentStreamFunction*>(dlsym(library, kCurrentStreamSymbol));
  module.device_name = reinterpret_cast<DeviceNameFunction*>(dlsym(library, kDeviceNameSymbol));
  if (module.create == nullptr || module.current_stream == nullptr ||
      module.device_name == nullptr) {
    module.status = absl::NotFoundError(
        absl::StrCat(path, " is of another version of ddprun: it lacks ", kCreateNcclSymbol, ", ",
                     kCurrentStreamSymbol, " or ", kDeviceNameSymbol,
                     "; build the worker and the library together"));
  }
  return module;
}

const Module& TheModule() {
  static const auto& module = *new Module(OpenModule());
  return module;
}

}  // namespace

absl::Status OpenGpuLibrary() {
  return TheModule().status;
}

std::string GpuName(int device) {
  const Module& module = TheModule();
  return module.device_name == nullptr ? "an unknown GPU" : module.device_name(device);
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    const CommunicatorOptions& options, const Exchange& exchange) {
  const Module& module = TheModule();
  if (!module.status.ok()) return module.status;
  CommunicatorOptions completed = options;
  if (!completed.current_stream) completed.current_stream = module.current_stream;
  absl::Status status;
  std::unique_ptr<Communicator> communicator(module.create(&completed, &exchange, &status));
  if (communicator == nullptr) return status;
  return communicator;
}

}  // namespace ddprun
