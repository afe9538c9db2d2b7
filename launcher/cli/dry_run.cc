#include "launcher/cli/dry_run.h"

#include <sys/utsname.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "launcher/agent/worker_environment.h"
#include "launcher/cli/master_address.h"
#include "launcher/cli/meeting.h"

namespace ddprun::cli {
namespace {

constexpr uint32_t kRanksShown = 32;

// Words that a shell would take apart stand in quotes.
std::string Quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isalnum(c) ||
           std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string CommandText(const RunPlan& plan, const Surroundings& here) {
  if (!plan.spec.train_config_json().empty()) return JoinPath(here.binary_folder, "ddp-worker");
  return absl::StrJoin(plan.spec.program(), " ", [](std::string* out, const std::string& word) {
    out->append(Quoted(word));
  });
}

std::string TimeText(double seconds) {
  return seconds > 0 ? absl::StrCat(seconds, " s") : std::string("none");
}

// Who this node is among several; "" when it is alone.
std::string NodeText(const ClusterPlan& cluster) {
  if (cluster.role == Role::kAlone) return "";
  if (!cluster.runs_agent) {
    return absl::StrCat("coordinator: here, listening on ", cluster.listen_address, "\n");
  }
  const std::string where = absl::StrCat(
      cluster.address, cluster.card.empty() ? "" : absl::StrCat(" (", cluster.card, ")"));
  return absl::StrCat("node: ", cluster.node, " at ", where,
                      cluster.node_rank >= 0 ? absl::StrCat(", of rank ", cluster.node_rank) : "",
                      "\ncoordinator: ",
                      cluster.role == Role::kHost
                          ? absl::StrCat("here, listening on ", cluster.listen_address,
                                         "; the other nodes reach it at ", cluster.endpoint)
                          : absl::StrCat("elsewhere, at ", cluster.endpoint),
                      "\nsecret: ", cluster.security.secret.empty() ? "none" : "given",
                      "; TLS: ", cluster.security.TlsServer() ? "on" : "off", "\n");
}

std::string Ranks(const Options& options, const RunPlan& plan) {
  const v1::JobSpec& spec = plan.spec;
  if (SeveralNodes(options)) {
    const std::string each = spec.processes_per_node() == 0
                                 ? "as many workers as its agent offers"
                                 : absl::StrCat(spec.processes_per_node(), " workers");
    const std::string nodes = spec.nodes_min() == spec.nodes_max()
                                  ? absl::StrCat(spec.nodes_max())
                                  : absl::StrCat(spec.nodes_min(), " to ", spec.nodes_max());
    const bool of_hosts = options.hosts.has_value();
    return absl::StrCat(
        "ranks: on ", nodes, " nodes, on each ", each, ", in the order in which the ",
        of_hosts ? "hosts are named" : "nodes come",
        options.command == Command::kRun && !of_hosts ? " (--node-rank wishes a place)" : "", "\n");
  }
  std::string text = "ranks:\n";
  for (uint32_t rank = 0; rank < std::min(plan.world_size, kRanksShown); ++rank) {
    absl::StrAppend(&text, "  RANK=", rank, " LOCAL_RANK=", rank, " WORLD_SIZE=", plan.world_size,
                    " LOCAL_WORLD_SIZE=", plan.world_size, " on this node");
    if (rank < plan.places.workers.size()) {
      const placement::WorkerPlace& place = plan.places.workers[rank];
      const std::string described = placement::DescribePlace(place);
      if (!described.empty()) absl::StrAppend(&text, ", ", described);
      for (const auto& [name, value] : place.variables) {
        absl::StrAppend(&text, " ", name, "=", value);
      }
    }
    text += "\n";
  }
  if (plan.world_size > kRanksShown) {
    absl::StrAppend(&text, "  … and ", plan.world_size - kRanksShown, " more\n");
  }
  return text;
}

std::string Configuration(const std::string& config_json) {
  std::string text = "configuration:\n";
  const auto config = nlohmann::ordered_json::parse(config_json, nullptr, false);
  for (const auto& [section, keys] : config.items()) {
    absl::StrAppend(&text, "  [", section, "]\n");
    for (const auto& [key, value] : keys.items()) {
      absl::StrAppend(&text, "  ", key, " = ", value.dump(), "\n");
    }
  }
  return text;
}

// Variables whose values hold a port that is not chosen yet.
bool NamesPort(const std::string& variable) {
  return variable == "MASTER_PORT" || variable == "PADDLE_MASTER" ||
         variable == "PADDLE_CURRENT_ENDPOINT" || variable == "PADDLE_TRAINER_ENDPOINTS";
}

// What the agent will give the worker of a rank, without what ddprun itself has.
std::map<std::string, std::string> AddedTo(const RunPlan& plan, const Surroundings& here,
                                           uint32_t rank) {
  v1::StartWorkers order;
  *order.mutable_spec() = plan.spec;
  order.set_job_id(plan.spec.job_id());
  order.set_generation(1);
  order.set_world_size(plan.world_size);
  order.set_local_world_size(plan.world_size);
  order.set_group_world_size(1);
  order.set_master_address(LoopbackAddress());
  agent::NodeFacts facts;
  utsname system = {};
  if (uname(&system) == 0) facts.node = system.nodename;
  facts.node = facts.node.substr(0, facts.node.find('.'));
  facts.master_port = plan.spec.launching().master_port();
  facts.places = plan.places.workers;
  std::map<std::string, std::string> added = agent::WorkerEnvironment(order, facts, rank);
  for (auto entry = added.begin(); entry != added.end();) {
    const auto own = here.environment.find(entry->first);
    const bool same = own != here.environment.end() && own->second == entry->second;
    const bool open = facts.master_port == 0 && NamesPort(entry->first);
    // A resumed job says later where it goes on.
    const bool later =
        plan.spec.resume() &&
        (entry->first == "DDPRUN_GENERATION" || entry->first == "DDPRUN_RESUME_FROM" ||
         entry->first == "DDPRUN_RESUME_STEP" || entry->first == "TORCHELASTIC_ERROR_FILE");
    entry = same || open || later || entry->first == "DDPRUN_TRAIN_CONFIG" ? added.erase(entry)
                                                                           : std::next(entry);
  }
  return added;
}

std::string EnvironmentText(const RunPlan& plan, const Surroundings& here) {
  const uint32_t shown = std::min(plan.world_size, kRanksShown);
  std::vector<std::map<std::string, std::string>> added;
  added.reserve(shown);
  for (uint32_t rank = 0; rank < shown; ++rank) added.push_back(AddedTo(plan, here, rank));
  const auto same_for_all = [&](const std::string& name, const std::string& value) {
    return std::all_of(added.begin(), added.end(), [&](const auto& of_rank) {
      const auto found = of_rank.find(name);
      return found != of_rank.end() && found->second == value;
    });
  };
  std::string text = "environment of every worker, besides that of ddprun:\n";
  std::vector<std::string> lines(shown);
  for (uint32_t rank = 0; rank < shown; ++rank) {
    for (const auto& [name, value] : added[rank]) {
      const std::string variable = absl::StrCat(name, "=", Quoted(value));
      if (!same_for_all(name, value)) {
        absl::StrAppend(&lines[rank], " ", variable);
      } else if (rank == 0) {
        absl::StrAppend(&text, "  ", variable, "\n");
      }
    }
  }
  if (plan.spec.launching().master_port() == 0) {
    text += "  MASTER_PORT, PADDLE_MASTER and Paddle's endpoints: a free port, held at the start\n";
  }
  text += "  DDPRUN_SOCKET_FD, DDPRUN_PAGE_FD: connections to ddprun\n";
  if (shown > 1) text += "environment that differs:\n";
  for (uint32_t rank = 0; rank < shown && shown > 1; ++rank) {
    absl::StrAppend(&text, "  rank ", rank, ":", lines[rank], "\n");
  }
  return text;
}

}  // namespace

std::string MemberDryRunText(const ClusterPlan& cluster) {
  return absl::StrCat(NodeText(cluster), "workers: ", cluster.slots,
                      "; all else of the job comes from the coordinator\n");
}

std::string DryRunText(const Options& options, const RunPlan& plan, const Surroundings& here,
                       const ClusterPlan& cluster) {
  const v1::JobSpec& spec = plan.spec;
  std::string text = absl::StrCat(
      "job ", spec.job_id(), spec.resume() ? " (resumed)" : "", "\n",
      "run folder: ", spec.run_dir(), "\n", "each worker executes: ", CommandText(plan, here), "\n",
      "in: ", spec.working_dir(), "\n", "device: ", spec.device(), "\n");
  if (spec.launching().preload_modules_size() > 0) {
    absl::StrAppend(&text, "loaded once for all of a node: ",
                    absl::StrJoin(spec.launching().preload_modules(), ", "),
                    " (--preload none: by each worker)\n");
  }
  absl::StrAppend(&text, NodeText(cluster), Ranks(options, plan));
  absl::StrAppend(&text, "restarts: at most ", spec.restart().max_restarts(), "; grace ",
                  spec.grace_seconds(), " s; lease ", TimeText(spec.lease_seconds()),
                  "; hang time-out ", TimeText(spec.supervision().hang_timeout_seconds()),
                  "; time limit ", TimeText(spec.time_limit_seconds()), "\n");
  if (!SeveralNodes(options)) absl::StrAppend(&text, EnvironmentText(plan, here));
  if (!spec.train_config_json().empty())
    absl::StrAppend(&text, Configuration(spec.train_config_json()));
  for (const std::string& note : plan.places.notes) absl::StrAppend(&text, "note: ", note, "\n");
  if (!plan.places.threads.empty()) absl::StrAppend(&text, "note: ", plan.places.threads, "\n");
  for (const std::string& note : cluster.notes) absl::StrAppend(&text, "note: ", note, "\n");
  for (const std::string& note : plan.notes) absl::StrAppend(&text, "note: ", note, "\n");
  return text;
}

}  // namespace ddprun::cli
