#include "worker/trainer/session.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

constexpr size_t kValueBytesMax = 32768;  // of one published value (proto/worker_protocol.md)

absl::Status ClientError(ddprun_handle* client, int code, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", ddprun_error(client));
  return code == DDPRUN_ETIMEOUT ? absl::DeadlineExceededError(message)
                                 : absl::UnavailableError(message);
}

// The address of this host on the way to `host`: what a datagram socket binds to when it is
// connected (nothing is sent).
absl::StatusOr<std::string> LocalAddressTowards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot resolve MASTER_ADDR ", host, ": ", gai_strerror(error)));
  }
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (const addrinfo* item = found; item != nullptr; item = item->ai_next) {
    const int fd = socket(item->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    absl::Cleanup close_fd = [fd] { close(fd); };
    sockaddr_storage address;
    socklen_t length = sizeof(address);
    char text[NI_MAXHOST];
    if (connect(fd, item->ai_addr, item->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return std::string(text);
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no network interface of this host leads to MASTER_ADDR ", host));
}

}  // namespace

absl::StatusOr<TrainConfig> ReadWorkerConfig(const char* path) {
  if (const char* json = std::getenv("DDPRUN_TRAIN_CONFIG"); json != nullptr) return FromJson(json);
  if (path == nullptr) {
    return absl::InvalidArgumentError(
        "no configuration: start it with `ddprun train.cfg`, or give the file as argument (one "
        "rank)");
  }
  return LoadTrainConfig(path, {});
}

absl::StatusOr<at::Device> ChooseDevice(int local_rank) {
  const char* text = std::getenv("DDPRUN_DEVICE");
  const std::string device = text == nullptr ? "cpu" : text;
  if (device == "cpu") return at::Device(at::kCPU);
  if (device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("DDPRUN_DEVICE is \"", device, "\"; expected cpu or cuda"));
  }
  if (absl::Status status = OpenGpuLibrary(); !status.ok()) return status;
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
}

Exchange MakeExchange(ddprun_handle* client) {
  Exchange exchange;
  exchange.publish = [client](const std::string& group, const std::string& name,
                              const std::string& bytes) {
    const int code =
        ddprun_publish(client, group.c_str(), name.c_str(), bytes.data(), bytes.size());
    return code == 0 ? absl::OkStatus()
                     : ClientError(client, code, absl::StrCat("cannot publish ", group, "/", name));
  };
  exchange.await = [client](const std::string& group, const std::string& name,
                            double timeout_seconds) -> absl::StatusOr<std::string> {
    std::string bytes(kValueBytesMax, '\0');
    size_t size = 0;
    const int code = ddprun_await(client, group.c_str(), name.c_str(), bytes.data(), bytes.size(),
                                  &size, timeout_seconds);
    if (code != 0)
      return ClientError(client, code, absl::StrCat("no ", group, "/", name, " from its rank"));
    bytes.resize(size);
    return bytes;
  };
  return exchange;
}

namespace {

// The step page has one pair of numbers, by which a hang report tells who is behind; so collectives
// are counted over all communicators of the process. Their threads call the observers.
struct CollectiveCounts {
  static CollectiveCounts& OfProcess() {
    static auto& counts = *new CollectiveCounts;
    return counts;
  }
  std::mutex mutex;
  uint64_t started = 0;
  uint64_t finished = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectRanks(const Session& session,
                                                           const std::string& name) {
  CommunicatorOptions options;
  options.name = name;
  options.rank = session.rank;
  options.size = session.world_size;
  options.observer = [client = session.client, name](const char* operation, uint64_t /*sequence*/,
                                                     bool finished) {
    CollectiveCounts& counts = CollectiveCounts::OfProcess();
    const std::lock_guard<std::mutex> lock(counts.mutex);
    const std::string text = name == "world" ? operation : absl::StrCat(name, " ", operation);
    const uint64_t number = finished ? ++counts.finished : ++counts.started;
    ddprun_collective(client, text.c_str(), number, finished ? 1 : 0);
  };
  if (session.device.is_cuda()) {
    // A variable that is set already is somebody's wish.
    const std::string& debug = session.config.log_nccl_debug;
    if (debug != "off") setenv("NCCL_DEBUG", absl::AsciiStrToUpper(debug).c_str(), 0);
    options.device = static_cast<int>(static_cast<unsigned char>(session.device.index()));
    return CreateNcclCommunicator(options, session.exchange);
  }
  if (ddprun_local_world_size(session.client) != session.world_size) {
    const char* master = std::getenv("MASTER_ADDR");
    absl::StatusOr<std::string> host =
        LocalAddressTowards(master == nullptr ? "127.0.0.1" : master);
    if (!host.ok()) return host.status();
    options.host = *std::move(host);
  }
  return CreateGlooCommunicator(options, session.exchange);
}

std::string DataCacheDir(const Session& session) {
  const std::string state_dir = ddprun_state_dir(session.client);
  return state_dir.empty() ? "" : state_dir + "/data-cache";
}

int FailureKind(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return DDPRUN_FAIL_COMMUNICATION;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
    // The next try would ask for as much memory again.
    case absl::StatusCode::kResourceExhausted:
      return DDPRUN_FAIL_CONFIG;
    default:
      return DDPRUN_FAIL_ERROR;
  }
}

}  // namespace ddprun
