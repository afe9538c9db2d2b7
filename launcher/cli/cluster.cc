#include "launcher/cli/cluster.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/cli/format.h"
#include "launcher/cli/meeting.h"
#include "launcher/cli/slurm_cluster.h"
#include "launcher/net/address.h"
#include "launcher/net/credentials.h"
#include "launcher/net/diagnose.h"
#include "launcher/net/host_text.h"
#include "launcher/net/secret.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kJoinTimeoutSeconds = 600;
constexpr double kLookAgainSeconds = 1;
constexpr double kTellSeconds = 10;  // L39
constexpr size_t kSecretLineBytesMax = net::kSecretBytesMax + 2;

// What the steps of a plan need and fill.
struct Work {
  const Options& options;
  const ClusterWait& wait;
  ClusterPlan plan;
  Meeting meeting;
  Clock::time_point start = Clock::now();
  double told_seconds = -kTellSeconds;

  double Passed() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
  double Left() const { return plan.join_timeout_seconds - Passed(); }
};

// Waits a little for what was not there; the first time and every ten seconds with a line.
absl::Status LookAgainLater(Work& w, const std::string& problem, const std::string& fix) {
  if (w.Left() <= 0) {
    return absl::DeadlineExceededError(absl::StrCat(w.meeting.Typed(), ": ", problem, ", for ",
                                                    Duration(w.plan.join_timeout_seconds),
                                                    " (--join-timeout); ", fix));
  }
  if (w.Passed() - w.told_seconds >= kTellSeconds) {
    w.told_seconds = w.Passed();
    w.wait.say(absl::StrCat(w.meeting.Typed(), ": ", problem, "; trying again for ",
                            Duration(w.Left()), "; ", fix));
  }
  if (w.wait.pause(std::min(kLookAgainSeconds, w.Left()))) return absl::OkStatus();
  return absl::CancelledError("stopped while waiting for the coordinator");
}

// A name of this machine: Debian gives that 127.0.1.1.
bool NamesThisMachine(const std::string& host) {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return false;
  const std::string own = name;
  return host == own || host.substr(0, host.find('.')) == own.substr(0, own.find('.'));
}

// Names of other machines that lead to this one: machines were copied with their /etc/hosts.
absl::Status CheckLoopbackName(const Work& w, const std::vector<std::string>& addresses) {
  const bool all_loopback = std::all_of(addresses.begin(), addresses.end(), net::IsLoopback);
  if (!all_loopback || net::NamesLoopback(w.meeting.host) || NamesThisMachine(w.meeting.host)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      w.meeting.Typed(), ": ", w.meeting.host, " is ", addresses[0],
      " here, which only this machine reaches, and this machine is not called so; mend its "
      "/etc/hosts, or give a numeric address"));
}

absl::StatusOr<std::vector<std::string>> AwaitName(Work& w) {
  while (true) {
    const net::Resolution found = net::Resolve(w.meeting.host);
    if (!found.addresses.empty()) return found.addresses;
    absl::Status waited = LookAgainLater(
        w, absl::StrCat(w.meeting.host, " has no address (", found.error, ")"),
        "is the name right, and does the DNS or /etc/hosts of this machine know it?");
    if (!waited.ok()) return waited;
  }
}

// One process at a time of a machine (network namespace) may be about to host on a port; the
// kernel forgets the name when the process ends.
std::shared_ptr<void> LockPort(uint16_t port) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return nullptr;
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const std::string text = absl::StrCat("ddprun-coordinator-", port);
  memcpy(name.sun_path + 1, text.data(), text.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  if (bind(fd, reinterpret_cast<sockaddr*>(&name), bytes) != 0) {
    close(fd);
    return nullptr;
  }
  return std::shared_ptr<int>(new int(fd), [](int* held) {
    close(*held);
    delete held;
  });
}

// This node owns the address: it hosts, unless a coordinator of ours does already.
absl::Status TakePort(Work& w, const std::string& own) {
  ClusterPlan& plan = w.plan;
  const bool loopback = net::NamesLoopback(w.meeting.host);
  const std::string any = net::AnyAddress();
  const std::string bare = any == "[::]" ? "::" : any;
  plan.role = Role::kMember;
  plan.port_lock = LockPort(w.meeting.port);
  if (plan.port_lock == nullptr) return absl::OkStatus();
  absl::Status free = net::CheckPortIsFree(w.meeting.port, loopback ? own : bare);
  if (free.ok()) {
    plan.role = Role::kHost;
    plan.listen_address =
        loopback ? net::JoinEndpoint(own, w.meeting.port) : absl::StrCat(any, ":", w.meeting.port);
    return free;
  }
  plan.port_lock.reset();
  if (free.code() != absl::StatusCode::kAlreadyExists) {
    return absl::InvalidArgumentError(absl::StrCat(w.meeting.Typed(), ": cannot listen on port ",
                                                   w.meeting.port, ": ", free.message()));
  }
  const net::Diagnosis who =
      net::Diagnose(net::JoinEndpoint(own, w.meeting.port), plan.security, w.meeting.host);
  if (who.text.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(w.meeting.Typed(), ": port ", w.meeting.port,
                   " of this machine is taken, and no coordinator that this job could use answers "
                   "there: ",
                   who.text, "; choose another port, the same on each node"));
}

absl::Status ChooseRole(Work& w, const std::vector<std::string>& addresses) {
  absl::Status status = CheckLoopbackName(w, addresses);
  if (!status.ok()) return status;
  if (w.options.command == Command::kAgent || w.meeting.hosts == false) {
    w.plan.role = Role::kMember;
    return status;
  }
  // An address that other machines reach counts more than loopback.
  std::string own;
  for (const std::string& address : addresses) {
    if (!net::IsOwn(address)) continue;
    if (own.empty() || (net::IsLoopback(own) && !net::IsLoopback(address))) own = address;
  }
  if (own.empty() && w.meeting.hosts != true) {
    w.plan.role = Role::kMember;
    return status;
  }
  return TakePort(w, own.empty() ? addresses[0] : own);
}

// ---- the address that the others use

void Use(const net::Choice& choice, ClusterPlan* plan) {
  plan->address = choice.address;
  plan->card = choice.card;
  if (choice.table.empty()) return;
  plan->notes.push_back(
      absl::StrCat("network cards (--iface or --advertise-addr choose another):\n",
                   absl::StrJoin(choice.table, "\n")));
}

absl::Status UseGiven(Work& w, const std::string& option, const std::string& host) {
  const std::string fix =
      "; give one of this machine's addresses (ip -brief addr lists them), or leave it away";
  const std::string why = net::WhyNobodysAddress(host);
  if (!why.empty())
    return absl::InvalidArgumentError(absl::StrCat(option, " ", host, ": ", why, fix));
  const net::Resolution found = net::Resolve(host);
  if (found.addresses.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " ", host, ": has no address: ", found.error, fix));
  }
  for (const std::string& address : found.addresses) {
    if (!net::WhyNobodysAddress(address).empty() || !net::IsOwn(address)) continue;
    w.plan.address = address;
    w.plan.card = net::CardOf(net::Cards(), address);
    return absl::OkStatus();
  }
  const std::string resolved =
      found.addresses[0] == host ? "" : absl::StrCat("is ", found.addresses[0], ", and that ");
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", host, ": ", resolved, "is no address of this machine", fix));
}

absl::Status UseCard(Work& w, const std::string& card) {
  const std::vector<net::Card> cards = net::Cards();
  const net::Choice choice = net::ChooseAddress(cards, card);
  if (net::IsLoopback(choice.address) && !net::NamesLoopback(w.meeting.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--iface ", card, ": only this machine reaches ", choice.address,
                     ", and the coordinator is at ", w.meeting.Endpoint(),
                     "; give a card that the other nodes reach, or leave it away"));
  }
  if (!choice.address.empty()) {
    w.plan.address = choice.address;
    w.plan.card = choice.card;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--iface ", card, ": no network card of this name has an address and is up; there are\n",
      absl::StrJoin(choice.table, "\n")));
}

absl::Status UseOwn(Work& w, const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    const bool typed_loopback = net::NamesLoopback(w.meeting.host);
    if (!net::IsOwn(address) || (net::IsLoopback(address) && !typed_loopback)) continue;
    w.plan.address = address;
    w.plan.card = net::CardOf(net::Cards(), address);
    return absl::OkStatus();
  }
  const net::Choice choice = net::ChooseAddress(net::Cards(), "");
  if (choice.address.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this machine has no address that other nodes could reach:\n",
                     absl::StrJoin(choice.table, "\n"),
                     "\ngive one with --advertise-addr, or a card with --iface"));
  }
  Use(choice, &w.plan);
  return absl::OkStatus();
}

// Of the way to the coordinator; a network that is not up yet is waited for.
absl::Status UseRoute(Work& w, const std::vector<std::string>& addresses) {
  while (true) {
    std::string problem;
    for (const std::string& address : addresses) {
      const absl::StatusOr<std::string> local = net::LocalAddressTowards(address);
      if (local.ok()) {
        Use(net::ChosenByRoute(net::Cards(), *local, address), &w.plan);
        return absl::OkStatus();
      }
      problem = absl::StrCat("there is no way to ", address, " (", local.status().message(), ")");
    }
    absl::Status waited = LookAgainLater(
        w, problem, "is the network of this machine up, and is that address in reach of it?");
    if (!waited.ok()) return waited;
  }
}

// Asked for; looked at before anything is waited for.
absl::Status UseWished(Work& w) {
  const Options& o = w.options;
  if (o.advertise_address) return UseGiven(w, "--advertise-addr", *o.advertise_address);
  if (o.torchrun.local_address) return UseGiven(w, "--local-addr", *o.torchrun.local_address);
  if (o.interface) return UseCard(w, *o.interface);
  return absl::OkStatus();
}

absl::Status ChooseOwnAddress(Work& w, const std::vector<std::string>& addresses) {
  if (!w.plan.address.empty()) return absl::OkStatus();
  return w.plan.role == Role::kHost ? UseOwn(w, addresses) : UseRoute(w, addresses);
}

absl::Status CheckSecretIsThere(const Options& o, const ClusterPlan& plan) {
  if (!plan.security.secret.empty()) return absl::OkStatus();
  const bool several = o.nodes_max.value_or(1) > 1 || o.command == Command::kRun;
  if (o.command == Command::kAgent) return absl::OkStatus();  // the coordinator decides
  const net::Endpoint listen = net::SplitEndpoint(o.listen);
  if (!several && net::NamesLoopback(listen.host)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      several ? absl::StrCat("--nnodes ", NodesText(o)) : absl::StrCat("--listen ", o.listen),
      ": whoever reaches the coordinator could run programs here, so the job needs a secret, the "
      "same on each node: make one by\n  (umask 077; openssl rand -hex 32 > ddprun.secret)\n"
      "and set DDPRUN_SECRET_FILE=ddprun.secret (or DDPRUN_SECRET to its text) on each node"));
}

absl::Status ChooseName(const Options& o, ClusterPlan* plan) {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) name[0] = '\0';
  const std::string own = name;
  plan->node = o.node.empty() ? own.substr(0, own.find('.')) : o.node;
  if (plan->node.empty()) plan->node = "node";
  if (net::IsName(plan->node)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the name of this host, ", net::Shown(plan->node),
                   ", cannot be a node's name; give one with --node"));
}

// The first line of standard input; not a byte more is read.
absl::StatusOr<std::string> ReadSecretLine() {
  std::string line;
  char byte = 0;
  while (line.size() < kSecretLineBytesMax && read(STDIN_FILENO, &byte, 1) == 1) {
    if (byte == '\n') break;
    line.push_back(byte);
  }
  return net::CheckSecret(std::move(line), "the first line of standard input (--tether)");
}

}  // namespace

absl::StatusOr<net::Security> ReadSecurity(const Options& o, const Surroundings& here) {
  const auto text = [](const std::optional<std::string>& value) {
    return value ? value->c_str() : nullptr;
  };
  net::Security security;
  absl::StatusOr<std::string> secret =
      o.tether ? ReadSecretLine() : net::ReadSecret(text(here.secret), text(here.secret_file));
  if (!secret.ok()) return secret.status();
  security.secret = *std::move(secret);
  absl::Status status = net::ReadTls(o.tls_certificate, o.tls_key, o.tls_ca, &security);
  if (!status.ok()) return status;
  return security;
}

absl::StatusOr<ClusterPlan> PlanCluster(const Options& options, const Surroundings& here,
                                        const ClusterWait& wait) {
  Work w{options, wait, {}, {}};
  ClusterPlan& plan = w.plan;
  plan.join_timeout_seconds = options.join_timeout_seconds.value_or(
      options.torchrun.join_timeout_seconds.value_or(kJoinTimeoutSeconds));
  plan.node_rank = options.node_rank.value_or(-1);
  plan.job_id = options.job_id.value_or(options.torchrun.rdzv_id.value_or(""));
  absl::Status status = ChooseName(options, &plan);
  if (!status.ok()) return status;
  const bool runs = options.command == Command::kRun;
  if (runs && !SeveralNodes(options)) {
    if (plan.node_rank <= 0) return std::move(plan);
    return absl::InvalidArgumentError(
        absl::StrCat("--node-rank ", plan.node_rank,
                     ": the job has one node, of rank 0; for several give --nnodes too"));
  }
  absl::StatusOr<net::Security> security = ReadSecurity(options, here);
  if (!security.ok()) return security.status();
  plan.security = *std::move(security);
  if (options.slurm) return PlanSlurmCluster(options, here, std::move(plan.security), wait);
  status = CheckSecretIsThere(options, plan);
  if (!status.ok()) return status;
  if (options.command == Command::kCoordinator) {
    plan.role = Role::kHost;
    plan.runs_agent = false;
    plan.listen_address = options.listen;
    plan.endpoint = options.listen;
    return std::move(plan);
  }
  const auto slots = CountProcesses(options.processes.value_or(Processes{}), here, options);
  if (!slots.ok()) return slots.status();
  plan.slots = *slots;
  if (runs) {
    absl::StatusOr<Meeting> meeting = MeetingOf(options);
    if (!meeting.ok()) return meeting.status();
    w.meeting = *std::move(meeting);
  } else {
    const net::Endpoint endpoint = net::SplitEndpoint(options.coordinator);
    w.meeting = {"--coordinator", endpoint.host, endpoint.port, false};
  }
  plan.endpoint = w.meeting.Endpoint();
  status = CheckSomebodys(w.meeting);
  if (status.ok()) status = UseWished(w);
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<std::string>> addresses = AwaitName(w);
  if (!addresses.ok()) return addresses.status();
  status = ChooseRole(w, *addresses);
  if (status.ok()) status = ChooseOwnAddress(w, *addresses);
  if (!status.ok()) return status;
  // In whole seconds, for people.
  if (w.told_seconds >= 0) plan.join_timeout_seconds = std::max(std::ceil(w.Left()), 1.0);
  return std::move(plan);
}

}  // namespace ddprun::cli
