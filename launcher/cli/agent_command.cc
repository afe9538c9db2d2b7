// `ddprun agent`: offers this machine to a coordinator over TCP.
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/agent/agent.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/signals.h"
#include "launcher/console/console.h"

namespace ddprun::cli {
namespace {

// A coordinator that starts later is found soon after.
constexpr int kReconnectMillisecondsMin = 200;
constexpr int kReconnectMillisecondsMax = 1000;

// Connecting a datagram socket sends nothing, but chooses the local address.
std::string LocalAddressOf(const addrinfo& remote) {
  const int fd = socket(remote.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage local = {};
  socklen_t bytes = sizeof local;
  std::array<char, NI_MAXHOST> text = {};
  const bool found = connect(fd, remote.ai_addr, remote.ai_addrlen) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&local), &bytes) == 0 &&
                     getnameinfo(reinterpret_cast<sockaddr*>(&local), bytes, text.data(),
                                 text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  close(fd);
  return found ? text.data() : "";
}

// The numeric address of this machine on the way to the coordinator: where peers reach its workers.
// A host's own name often resolves to something that only it can reach.
absl::StatusOr<std::string> AddressTowards(const std::string& coordinator) {
  const size_t colon = coordinator.rfind(':');
  std::string host = coordinator.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* results = nullptr;
  const int error = getaddrinfo(host.c_str(), coordinator.c_str() + colon + 1, &hints, &results);
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("--coordinator ", coordinator, ": ", host,
                                            " has no address: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(results, freeaddrinfo);
  for (const addrinfo* entry = results; entry != nullptr; entry = entry->ai_next) {
    std::string address = LocalAddressOf(*entry);
    if (!address.empty()) return address;
  }
  return absl::UnavailableError(
      absl::StrCat("--coordinator ", coordinator, ": there is no route to it"));
}

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& coordinator) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMin);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMin);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMax);
  return grpc::CreateCustomChannel(coordinator, grpc::InsecureChannelCredentials(), arguments);
}

absl::StatusOr<agent::AgentOptions> MakeAgentOptions(const Options& options,
                                                     const Surroundings& here, Console* console) {
  const absl::StatusOr<uint32_t> slots =
      CountProcesses(options.processes.value_or(Processes{}), here, options);
  if (!slots.ok()) return slots.status();
  const absl::StatusOr<std::string> address = AddressTowards(options.coordinator);
  if (!address.ok()) return address.status();
  agent::AgentOptions agent;
  agent.identity.job_id = options.job_id.value_or("");
  agent.identity.node = options.node.empty() ? agent::DefaultNodeName() : options.node;
  agent.identity.address = options.torchrun.local_address.value_or(*address);
  agent.identity.version = here.version;
  agent.identity.slots = *slots;
  agent.identity.node_rank_wanted = options.node_rank.value_or(-1);
  agent.channel = ChannelTo(options.coordinator);
  agent.over_network = true;
  agent.keeper_path = JoinPath(here.binary_folder, "ddprun-keeper");
  agent.worker_path = JoinPath(here.binary_folder, "ddp-worker");
  agent.console = console;
  agent.machine = here.machine;
  return agent;
}

}  // namespace

int RunAgent(const Options& options, const Surroundings& here) {
  Console console;
  auto agent_options = MakeAgentOptions(options, here, &console);
  if (!agent_options.ok()) {
    std::fprintf(stderr, "ddprun: %s\n", std::string(agent_options.status().message()).c_str());
    return kExitBadUsage;
  }
  console.Say(absl::StrCat(
      "ddprun: node ", agent_options->identity.node, " at ", agent_options->identity.address,
      " offers ", agent_options->identity.slots,
      agent_options->identity.slots == 1 ? " worker to " : " workers to ", options.coordinator));
  auto agent = agent::Agent::Start(*std::move(agent_options));
  if (!agent.ok()) {
    std::fprintf(stderr, "ddprun: %s\n", std::string(agent.status().message()).c_str());
    return kExitInternal;
  }
  std::atomic<int> left_by = 0;
  int code = 0;
  std::string reason;
  {
    SignalThread signals([&](int signal) {
      // The coordinator's to answer, which knows the whole job. An agent that stopped itself would
      // lose its lease, and the workers with it.
      for (int other : {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
        if (signal == other) return;
      }
      left_by = signal;
      (*agent)->Leave(absl::StrCat("it got SIG", sigabbrev_np(signal)));
    });
    code = (*agent)->WaitForEnd(&reason);
  }
  console.Say(absl::StrCat("ddprun: node leaves: ", reason));
  return left_by != 0 ? 128 + left_by : code;
}

}  // namespace ddprun::cli
