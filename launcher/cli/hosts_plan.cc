#include "launcher/cli/hosts_plan.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "launcher/net/address.h"

namespace ddprun::cli {
namespace {

// The coordinator is there before its agents: one that cannot be reached in this time will not be.
constexpr double kJoinSecondsMax = 30;

std::string OwnName() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

// Another user's agent needs ssh even here.
bool IsThisMachine(const HostEntry& entry, const std::vector<std::string>& addresses) {
  if (entry.target != entry.host) return false;
  const std::string own = OwnName();
  if (entry.host == own || entry.host == own.substr(0, own.find('.'))) return true;
  return net::NamesLoopback(entry.host) ||
         std::any_of(addresses.begin(), addresses.end(), net::IsOwn);
}

// Our address on the way to a host. A name that only ssh knows (~/.ssh/config) is reached like
// everything else.
std::string AddressTowards(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    const auto local = net::LocalAddressTowards(address);
    if (local.ok() && !net::IsLoopback(*local)) return *local;
  }
  return net::ChooseAddress(net::Cards(), "").address;
}

struct Wished {
  std::string host;
  uint16_t port = 0;
};

// --coordinator, --advertise-addr, --iface: where the agents reach the coordinator.
absl::StatusOr<Wished> WishedPlace(const Options& o) {
  Wished wished;
  if (!o.coordinator.empty()) {
    const net::Endpoint endpoint = net::SplitEndpoint(o.coordinator);
    wished = {endpoint.host, endpoint.port};
  }
  if (o.advertise_address) wished.host = *o.advertise_address;
  if (wished.host.empty() && o.interface) {
    const net::Choice choice = net::ChooseAddress(net::Cards(), *o.interface);
    if (choice.address.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--iface ", *o.interface,
                       ": this machine has no such network card with an address that others could "
                       "use (ip -brief addr lists them)"));
    }
    wished.host = choice.address;
  }
  return wished;
}

absl::Status CheckPlace(const Options& o, const Wished& wished, bool all_here) {
  if (all_here || wished.host.empty() || !net::NamesLoopback(wished.host)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      o.advertise_address ? "--advertise-addr " : "--coordinator ", wished.host,
      ": the agents on other hosts cannot reach a loopback address; give one of this machine's "
      "addresses, or leave it away"));
}

std::string ListenAddress(const HostsPlan& plan, const Wished& wished, bool all_here) {
  std::set<std::string> addresses;
  for (const PlannedHost& host : plan.hosts) addresses.insert(host.coordinator);
  const bool one = addresses.size() == 1 && net::IsNumeric(*addresses.begin());
  std::string address = one ? *addresses.begin() : net::AnyAddress();
  if (all_here && wished.host.empty()) address = "127.0.0.1";
  if (absl::StartsWith(address, "[")) address = address.substr(1, address.size() - 2);
  return net::JoinEndpoint(address, wished.port);
}

std::string SlotsText(const Options& o, uint32_t slots) {
  if (slots != 0) return absl::StrCat(slots);
  const Processes processes = o.processes.value_or(Processes{});
  switch (processes.kind) {
    case Processes::Kind::kNumber:
      return absl::StrCat(processes.number);
    case Processes::Kind::kGpus:
      return "gpu";
    case Processes::Kind::kCpus:
      return "cpu";
    case Processes::Kind::kAuto:
      return "auto";
  }
  return "auto";
}

std::vector<std::string> AgentArguments(const PlannedHost& host, const Options& o,
                                        const Surroundings& here, const std::string& job_id,
                                        int port) {
  std::vector<std::string> arguments = {"agent", "--tether"};
  const auto add = [&arguments](const char* option, const std::string& value) {
    arguments.emplace_back(option);
    arguments.push_back(value);
  };
  add("--coordinator", net::JoinEndpoint(host.coordinator, static_cast<uint16_t>(port)));
  add("--node", host.entry.node);
  add("--job-id", job_id);
  add("--nproc", SlotsText(o, host.entry.slots));
  add("--join-timeout",
      absl::StrCat(std::min(kJoinSecondsMax, o.join_timeout_seconds.value_or(kJoinSecondsMax))));
  // A route to an address of its own would lead this machine's agent to no other's.
  if (host.here) {
    add("--advertise-addr", host.coordinator);
  } else if (o.interface) {
    add("--iface", *o.interface);
  }
  const auto add_file = [&](const char* option, const std::string& path) {
    if (path.empty()) return;
    add(option, path[0] == '/' ? path : JoinPath(here.working_dir, path));
  };
  add_file("--tls-cert", o.tls_certificate);
  add_file("--tls-key", o.tls_key);
  add_file("--tls-ca", o.tls_ca);
  return arguments;
}

}  // namespace

absl::Status ApplyHosts(Options* options) {
  if (!options->hosts) {
    if (!options->ssh_command || options->command != Command::kRun) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--ssh ", *options->ssh_command, ": says how to reach --hosts; name them"));
  }
  const auto hosts = ReadHosts(*options->hosts);
  if (!hosts.ok()) return hosts.status();
  const auto count = static_cast<uint32_t>(hosts->size());
  if (!options->nodes_max) options->nodes_min = options->nodes_max = count;
  if (options->nodes_min.value_or(1) > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nnodes ", *options->nodes_min, ": --hosts names ", count,
                     count == 1 ? " host" : " hosts", "; name more, or ask for fewer"));
  }
  if (options->node_rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node-rank ", *options->node_rank,
                     ": with --hosts the nodes have the order in which they are named"));
  }
  if (!options->node.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--node ", options->node, ": with --hosts the nodes have the names of their hosts"));
  }
  return absl::OkStatus();
}

absl::StatusOr<HostsPlan> PlanHosts(const Options& options, const Surroundings& here) {
  const auto entries = ReadHosts(*options.hosts);
  if (!entries.ok()) return entries.status();
  const absl::StatusOr<Wished> wished = WishedPlace(options);
  if (!wished.ok()) return wished.status();
  HostsPlan plan;
  plan.place.ssh = options.ssh_command.value_or("ssh");
  plan.place.ddprun = JoinPath(here.binary_folder, "ddprun");
  plan.place.working_dir = here.working_dir;
  std::string shared;  // of the first host elsewhere; for the agent here
  for (const HostEntry& entry : *entries) {
    const std::vector<std::string> addresses = net::Resolve(entry.host).addresses;
    PlannedHost host{entry, IsThisMachine(entry, addresses), wished->host};
    if (!host.here && host.coordinator.empty()) host.coordinator = AddressTowards(addresses);
    if (!host.here && host.coordinator.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--hosts: this machine has no network address that ", entry.host,
                       " could reach it by; bring up a network card, or give --advertise-addr"));
    }
    if (!host.here && shared.empty()) shared = host.coordinator;
    plan.hosts.push_back(std::move(host));
  }
  const bool all_here = shared.empty();
  for (PlannedHost& host : plan.hosts) {
    if (host.coordinator.empty()) host.coordinator = all_here ? "127.0.0.1" : shared;
  }
  absl::Status status = CheckPlace(options, *wished, all_here);
  if (!status.ok()) return status;
  plan.listen_address = ListenAddress(plan, *wished, all_here);
  return plan;
}

absl::StatusOr<ClusterPlan> ClusterOf(const HostsPlan& plan, const Options& options,
                                      const Surroundings& here) {
  absl::StatusOr<net::Security> security = ReadSecurity(options, here);
  if (!security.ok()) return security.status();
  ClusterPlan cluster;
  cluster.role = Role::kHost;
  cluster.runs_agent = false;
  cluster.listen_address = plan.listen_address;
  cluster.endpoint = plan.listen_address;
  cluster.security = *std::move(security);
  if (cluster.security.secret.empty()) cluster.security.secret = NewSecret();
  for (const PlannedHost& host : plan.hosts) cluster.expected_nodes.push_back(host.entry.node);
  return cluster;
}

std::string HostsLine(const HostsPlan& plan, int port) {
  constexpr size_t kShownMax = 16;
  std::vector<std::string> names;
  std::set<std::string> endpoints;
  for (const PlannedHost& host : plan.hosts) {
    if (names.size() < kShownMax) {
      names.push_back(absl::StrCat(host.entry.target, host.here ? " (this machine)" : ""));
    }
    endpoints.insert(net::JoinEndpoint(host.coordinator, static_cast<uint16_t>(port)));
  }
  std::string line = absl::StrCat("starting an agent on ", absl::StrJoin(names, ", "));
  if (plan.hosts.size() > kShownMax) {
    absl::StrAppend(&line, " and ", plan.hosts.size() - kShownMax, " more");
  }
  return absl::StrCat(line, "; they reach the coordinator here at ",
                      absl::StrJoin(endpoints, ", "));
}

std::string HostsText(const HostsPlan& plan, const Options& options) {
  std::string text;
  for (const PlannedHost& host : plan.hosts) {
    absl::StrAppend(&text, "host ", host.entry.target, ": node ", host.entry.node, ", ",
                    host.here ? "this machine, without ssh" : absl::StrCat("by ", plan.place.ssh),
                    ", --nproc ", SlotsText(options, host.entry.slots),
                    ", reaches the coordinator at ", host.coordinator, "\n");
  }
  return text;
}

std::string HostsOptions(const Options& options) {
  if (!options.hosts) return "";
  std::string text = absl::StrCat(" --hosts ", ShellQuoted(*options.hosts));
  if (options.ssh_command) absl::StrAppend(&text, " --ssh ", ShellQuoted(*options.ssh_command));
  return text;
}

std::string NewSecret() {
  constexpr size_t kBytes = 32;
  std::string bytes(kBytes, '\0');
  size_t have = 0;
  while (have < kBytes) {
    const ssize_t got = getrandom(bytes.data() + have, kBytes - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(bytes);
}

RemoteAgentsOptions AgentsOf(const HostsPlan& plan, const Options& options,
                             const Surroundings& here, const std::string& job_id,
                             const std::string& secret, int port) {
  RemoteAgentsOptions agents;
  agents.place = plan.place;
  agents.secret = secret;
  agents.hosts_needed = options.nodes_min.value_or(1);
  for (const auto& [name, value] : here.environment) {
    if (absl::StartsWith(name, "DDPRUN_SECRET")) continue;
    agents.environment.push_back(absl::StrCat(name, "=", value));
  }
  const uint32_t nodes = options.nodes_max.value_or(1);
  int32_t rank = 0;
  for (const PlannedHost& host : plan.hosts) {
    std::vector<std::string> arguments = AgentArguments(host, options, here, job_id, port);
    if (static_cast<uint32_t>(rank) < nodes) {  // those behind are spares
      arguments.insert(arguments.end(), {"--node-rank", absl::StrCat(rank)});
    }
    ++rank;
    agents.hosts.push_back({host.entry, host.here, std::move(arguments)});
  }
  return agents;
}

}  // namespace ddprun::cli
