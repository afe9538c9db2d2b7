#include "launcher/cli/slurm_cluster.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "launcher/cli/rendezvous_file.h"
#include "launcher/net/address.h"
#include "launcher/net/proof.h"

namespace ddprun::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kConnectMilliseconds = 2000;
constexpr double kLookAgainSeconds = 0.5;
constexpr double kJoinSeconds = 600;  // the default of --join-timeout
constexpr size_t kAddressesWritten = 16;

// The folder that preflight.h is going to choose; the name of the job is known.
absl::StatusOr<std::string> RunFolder(const Options& o, const Surroundings& here) {
  const auto absolute = [&here](const std::string& path) {
    return path[0] == '/' ? path : JoinPath(here.working_dir, path);
  };
  if (o.run_dir) return absolute(*o.run_dir);
  const std::string runs = absolute(o.torchrun.log_dir.value_or("runs"));
  if (o.job_id) return JoinPath(runs, *o.job_id);
  if (o.torchrun.rdzv_id) return JoinPath(runs, *o.torchrun.rdzv_id);
  std::array<char, 4096> target = {};
  const std::string latest = JoinPath(runs, "latest");
  const ssize_t bytes = readlink(latest.c_str(), target.data(), target.size());
  if (bytes > 0) return JoinPath(runs, std::string(target.data(), static_cast<size_t>(bytes)));
  return absl::InvalidArgumentError(
      absl::StrCat("--resume: there is no ", latest, "; name the run folder with --run-dir"));
}

// The best one first; the others serve where a node sees this one by another network.
std::vector<std::string> CandidateAddresses(const std::vector<net::Card>& cards,
                                            const std::string& best) {
  std::vector<std::string> addresses = {best};
  for (const bool bridges : {false, true}) {
    for (const net::Card& card : cards) {
      const bool fits = card.up && !card.loopback && !card.link_local && card.bridge == bridges;
      if (fits && std::find(addresses.begin(), addresses.end(), card.address) == addresses.end()) {
        addresses.push_back(card.address);
      }
    }
  }
  if (addresses.size() > kAddressesWritten) addresses.resize(kAddressesWritten);
  return addresses;
}

// Whether somebody listens there.
bool Answers(const std::string& address, uint32_t port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  int error = connect(fd, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  pollfd writable = {fd, POLLOUT, 0};
  if (error == EINPROGRESS && poll(&writable, 1, kConnectMilliseconds) > 0) {
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  close(fd);
  return error == 0;
}

absl::StatusOr<ClusterPlan> PlanHost(ClusterPlan plan, const Options& options,
                                     const std::string& run_dir) {
  plan.role = Role::kHost;
  plan.listen_address = absl::StrCat(net::AnyAddress(), ":0");
  plan.endpoint = "a port that the system chooses";
  plan.expected_nodes = options.slurm->nodes;
  const std::vector<net::Card> cards = net::Cards();
  std::vector<std::string> addresses;
  if (options.advertise_address) {
    plan.address = *options.advertise_address;
    addresses = {plan.address};
  } else {
    const net::Choice choice = net::ChooseAddress(cards, options.interface.value_or(""));
    if (choice.address.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("this node has no address that the others could use",
                       options.interface ? absl::StrCat(" on --iface ", *options.interface) : "",
                       ": give one by --advertise-addr or --iface"));
    }
    plan.address = choice.address;
    addresses = options.interface ? std::vector<std::string>{plan.address}
                                  : CandidateAddresses(cards, plan.address);
  }
  plan.card = net::CardOf(cards, plan.address);
  Rendezvous file;
  file.slurm_job = options.slurm->job;
  file.slurm_step = options.slurm->step;
  file.restarts = options.slurm->restarts;
  file.node = plan.node;
  file.addresses = std::move(addresses);
  if (plan.security.secret.empty()) {
    file.secret = absl::BytesToHexString(net::MakeNonce());
    plan.security.secret = file.secret;
  }
  // The file goes when the last copy of the plan does.
  const std::shared_ptr<SlurmStep> removal(new SlurmStep(*options.slurm),
                                           [run_dir](SlurmStep* step) {
                                             RemoveRendezvous(run_dir, *step);
                                             delete step;
                                           });
  plan.on_listening = [file, run_dir, removal](int port) {
    Rendezvous written = file;
    written.port = static_cast<uint32_t>(port);
    return WriteRendezvous(run_dir, written);
  };
  plan.on_not_started = [file, run_dir](int exit_code) {
    if (access(run_dir.c_str(), F_OK) != 0) return;  // made by a job that starts alone
    Rendezvous written = file;
    written.secret.clear();
    written.exit_code = exit_code;
    WriteRendezvous(run_dir, written).IgnoreError();  // then the others wait in vain
  };
  return plan;
}

// The first of the host's addresses that answers.
absl::StatusOr<std::string> ReachHost(const Rendezvous& file, const ClusterWait& wait,
                                      Clock::time_point limit) {
  while (true) {
    for (const std::string& address : file.addresses) {
      if (Answers(address, file.port)) return address;
      if (!wait.pause(0)) return absl::CancelledError("stopped while joining");
    }
    if (!wait.pause(kLookAgainSeconds)) return absl::CancelledError("stopped while joining");
    if (Clock::now() < limit) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("node ", file.node, " does not answer at port ", file.port, " of any of ",
                     absl::StrJoin(file.addresses, ", "),
                     ": say on that node which address this one can reach, by --advertise-addr or "
                     "--iface, and let the firewall pass it"));
  }
}

absl::Status TakeOwnAddress(const Options& options, const std::string& host, ClusterPlan* plan) {
  const std::vector<net::Card> cards = net::Cards();
  if (options.advertise_address) {
    plan->address = *options.advertise_address;
  } else if (options.interface) {
    plan->address = net::ChooseAddress(cards, *options.interface).address;
    if (plan->address.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--iface ", *options.interface, ": has no address that others could use"));
    }
  } else {
    absl::StatusOr<std::string> local = net::LocalAddressTowards(host);
    if (!local.ok()) return local.status();
    plan->address = *std::move(local);
  }
  plan->card = net::CardOf(cards, plan->address);
  return absl::OkStatus();
}

// What is wrong with the command itself, so that no node waits for a host that has refused it.
absl::Status CheckCommand(const Options& options, const Surroundings& here,
                          const std::string& run_dir) {
  if (options.config_path.empty() && options.program.empty()) return absl::OkStatus();
  Options fresh = options;
  fresh.resume = false;
  // Never made. What the folder itself holds is looked at by the host alone.
  fresh.run_dir = absl::StrCat(run_dir, ".of-", options.node);
  return PlanRun(fresh, here).status();
}

absl::Status CheckHostRuns(const Rendezvous& file) {
  if (file.port != 0) return absl::OkStatus();
  const std::string line =
      absl::StrCat("node ", file.node, " has ended with exit code ", file.exit_code,
                   " before the others could join; its output says why");
  return file.exit_code == 0 ? absl::AlreadyExistsError(line) : absl::InvalidArgumentError(line);
}

absl::StatusOr<ClusterPlan> PlanMember(ClusterPlan plan, const Options& options,
                                       const std::string& run_dir, const ClusterWait& wait) {
  plan.role = Role::kMember;
  const auto start = Clock::now();
  const auto limit = start + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(plan.join_timeout_seconds));
  absl::StatusOr<Rendezvous> file =
      AwaitRendezvous(run_dir, *options.slurm, plan.join_timeout_seconds, wait);
  if (!file.ok()) return file.status();
  absl::Status status = CheckHostRuns(*file);
  if (!status.ok()) return status;
  if (plan.security.secret.empty()) plan.security.secret = file->secret;
  if (plan.security.secret.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", file->node,
                     " has a secret of its own (DDPRUN_SECRET or DDPRUN_SECRET_FILE), and this "
                     "node has none: set it on all nodes (srun --export=ALL), or on none"));
  }
  const absl::StatusOr<std::string> host = ReachHost(*file, wait, limit);
  if (!host.ok()) return host.status();
  plan.endpoint = net::JoinEndpoint(*host, static_cast<uint16_t>(file->port));
  const std::chrono::duration<double> took = Clock::now() - start;
  plan.join_timeout_seconds = std::max(1.0, plan.join_timeout_seconds - took.count());
  status = TakeOwnAddress(options, *host, &plan);
  if (!status.ok()) return status;
  return plan;
}

}  // namespace

absl::StatusOr<ClusterPlan> PlanSlurmCluster(const Options& options, const Surroundings& here,
                                             net::Security security, const ClusterWait& wait) {
  ClusterPlan plan;
  plan.security = std::move(security);
  plan.node = options.node;
  plan.node_rank = options.node_rank.value_or(-1);
  plan.join_timeout_seconds = options.join_timeout_seconds.value_or(
      options.torchrun.join_timeout_seconds.value_or(kJoinSeconds));
  plan.job_id = options.job_id.value_or("");
  const absl::StatusOr<uint32_t> slots =
      CountProcesses(options.processes.value_or(Processes{}), here, options);
  if (!slots.ok()) return slots.status();
  plan.slots = *slots;
  absl::StatusOr<std::string> run_dir = RunFolder(options, here);
  if (!run_dir.ok()) return run_dir.status();
  if (options.slurm->node_id == 0) return PlanHost(std::move(plan), options, *run_dir);
  absl::Status status = CheckCommand(options, here, *run_dir);
  if (!status.ok()) return status;
  return PlanMember(std::move(plan), options, *run_dir, wait);
}

}  // namespace ddprun::cli
