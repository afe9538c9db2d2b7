// `ddprun agent`, and `ddprun run` on a node that joins a job hosted elsewhere: offers this machine
// to a coordinator over TCP.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/agent/agent.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/dry_run.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/open_files.h"
#include "launcher/cli/remote_start.h"
#include "launcher/cli/signals.h"
#include "launcher/cli/tether.h"
#include "launcher/console/console.h"
#include "launcher/net/credentials.h"

namespace ddprun::cli {
namespace {

agent::AgentOptions MakeAgentOptions(const Options& options, const Surroundings& here,
                                     const ClusterPlan& cluster, Console* console) {
  agent::AgentOptions agent;
  agent.identity.job_id = cluster.job_id;
  agent.identity.node = cluster.node;
  agent.identity.address = cluster.address;
  agent.identity.version = here.version;
  agent.identity.slots = cluster.slots;
  agent.identity.node_rank_wanted = cluster.node_rank;
  agent.channel = net::MakeChannel(cluster.endpoint, cluster.security);
  agent.over_network = true;
  agent.coordinator = cluster.endpoint;
  agent.security = cluster.security;
  agent.join_timeout_seconds = cluster.join_timeout_seconds;
  agent.several_nodes = true;
  // The same command was typed on each node: what is set here is meant for the workers here.
  if (options.command == Command::kRun) agent.environment = OwnWorkerEnvironment(here);
  if (options.gpus) agent.gpus = *options.gpus;
  agent.keeper_path = JoinPath(here.binary_folder, "ddprun-keeper");
  agent.worker_path = JoinPath(here.binary_folder, "ddp-worker");
  agent.console = console;
  agent.machine = here.machine;
  return agent;
}

// Slurm signals every task of a step, and the host ends the whole job for that. A member that left
// at once would be taken for a node that is lost to a job that goes on. So it waits for as long as
// a stop takes (--grace), and this much more.
constexpr double kSlurmStopSeconds = 5;
constexpr double kGraceSeconds = 30;  // the default of --grace
constexpr int kTickSeconds = 1;

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool Stops(const Options& options, int signal) {
  for (int stop : options.stop_signals.value_or(kStopSignals)) {
    if (signal == stop) return true;
  }
  return false;
}

void SayOffer(const ClusterPlan& cluster, Console* console) {
  console->Say(absl::StrCat("ddprun: node ", cluster.node, " at ", cluster.address,
                            cluster.card.empty() ? "" : absl::StrCat(" (", cluster.card, ")"),
                            " offers ", cluster.slots,
                            cluster.slots == 1 ? " worker to " : " workers to ", cluster.endpoint));
}

// Of an agent that `ddprun --hosts` has started, which shows who comes and goes.
std::unique_ptr<Tether> MakeTether(const Options& options, agent::Agent* agent) {
  if (!options.tether) return nullptr;
  return std::make_unique<Tether>(STDIN_FILENO, [agent] {
    agent->Leave("the ddprun that has started this agent is gone", /*planned=*/false);
  });
}

}  // namespace

int RunMember(const Options& options, const Surroundings& here, const ClusterPlan& cluster) {
  const absl::Status files = HaveOpenFiles(OpenFilesNeeded(cluster.slots));
  if (!files.ok()) {
    PrintError(files);
    return kExitBadUsage;
  }
  Console console;
  for (const std::string& note : cluster.notes) console.Say("ddprun: " + note);
  if (!options.tether) SayOffer(cluster, &console);
  auto agent = agent::Agent::Start(MakeAgentOptions(options, here, cluster, &console));
  if (!agent.ok()) {
    PrintError(agent.status());
    return kExitInternal;
  }
  std::atomic<int> left_by = 0;
  double leave_at = 0;  // of the signal thread; 0: nothing to do
  agent::AgentEnd end;
  {
    const auto leave = [&](bool planned) {
      leave_at = 0;
      (*agent)->Leave(absl::StrCat("it got SIG", sigabbrev_np(left_by)), planned);
    };
    const auto on_signal = [&](int signal) {
      // Others are the coordinator's to answer, which knows the whole job. An agent that stopped
      // itself would lose its lease, and the workers with it.
      if (!Stops(options, signal)) return;
      const bool first = left_by.exchange(signal) == 0;
      const std::string name = absl::StrCat("ddprun: SIG", sigabbrev_np(signal));
      if (first && options.slurm) {
        leave_at =
            MonotonicSeconds() + options.grace_seconds.value_or(kGraceSeconds) + kSlurmStopSeconds;
        return console.Say(absl::StrCat(name, ": node ", options.slurm->nodes[0],
                                        " stops the job (a second one leaves at once)"));
      }
      console.Say(absl::StrCat(name, first ? ": leaving the job, which goes on without this node "
                                             "(a second one leaves at once)"
                                           : " again: killing the workers here"));
      leave(/*planned=*/first);
    };
    const auto on_tick = [&] {
      if (leave_at == 0 || MonotonicSeconds() < leave_at) return;
      console.Say("ddprun: the job goes on; this node leaves it");
      leave(/*planned=*/true);
    };
    SignalThread signals(on_signal, options.slurm ? std::function<void()>(on_tick) : nullptr,
                         kTickSeconds);
    const std::unique_ptr<Tether> tether = MakeTether(options, agent->get());
    end = (*agent)->WaitForEnd();
  }
  if (options.tether && end.job_over) {
    console.Say(JobOverMark());
    return end.exit_code;
  }
  console.Say(absl::StrCat(
      "ddprun: node ", cluster.node, " leaves: ", end.reason,
      end.job_over && end.exit_code != 0 ? absl::StrCat(", with exit code ", end.exit_code) : ""));
  return end.left && left_by != 0 ? 128 + left_by : end.exit_code;
}

std::optional<ClusterPlan> PlanClusterOrExplain(const Options& options, const Surroundings& here,
                                                int* code) {
  int stopped_by = 0;
  ClusterWait wait;
  wait.say = [](const std::string& line) { PrintError(line); };
  wait.pause = [&](double seconds) {
    stopped_by = AwaitSignal(options.stop_signals.value_or(kStopSignals), seconds);
    return stopped_by == 0;
  };
  absl::StatusOr<ClusterPlan> plan = PlanCluster(options, here, wait);
  if (plan.ok()) return *std::move(plan);
  wait.say(std::string(plan.status().message()));
  if (absl::IsAlreadyExists(plan.status())) {  // the job is done
    *code = 0;
    return std::nullopt;
  }
  const bool late = plan.status().code() == absl::StatusCode::kDeadlineExceeded;
  *code = stopped_by != 0 ? 128 + stopped_by : late ? kExitNodesMissing : kExitBadUsage;
  return std::nullopt;
}

int RunAgent(const Options& options, const Surroundings& here) {
  int code = 0;
  const std::optional<ClusterPlan> cluster = PlanClusterOrExplain(options, here, &code);
  return cluster ? RunMember(options, here, *cluster) : code;
}

}  // namespace ddprun::cli
