// `ddprun run` and `ddprun coordinator`: preflight, then coordinator, agent, view and signals put
// together.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/agent/agent.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/doctor_machine.h"
#include "launcher/cli/dry_run.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/hosts_plan.h"
#include "launcher/cli/job_session.h"
#include "launcher/cli/master_address.h"
#include "launcher/cli/meeting.h"
#include "launcher/cli/open_files.h"
#include "launcher/cli/remote_agents.h"
#include "launcher/cli/retention.h"
#include "launcher/cli/run_dir.h"
#include "launcher/cli/signals.h"
#include "launcher/cli/slurm_cluster.h"
#include "launcher/cli/worker_question.h"
#include "launcher/console/console.h"
#include "launcher/coordinator/server.h"
#include "launcher/net/address.h"
#include "launcher/net/host_text.h"
#include "launcher/net/listener.h"

namespace ddprun::cli {
namespace {

constexpr int kTickSeconds = 10;  // L39: who is missing
constexpr double kFlushSecondsMax = 1;

// One that all nodes give: a loopback address says that all are on this machine.
std::string AddressOption(const Options& options) {
  const std::string address =
      options.advertise_address.value_or(options.torchrun.local_address.value_or(""));
  return net::NamesLoopback(address) ? absl::StrCat(" --advertise-addr ", address) : "";
}

std::string ResumeCommand(const Options& options, const RunPlan& plan, const Surroundings& here,
                          const ClusterPlan& cluster) {
  std::string command = here.command_line.substr(0, here.command_line.find(' '));
  if (options.command == Command::kCoordinator) {
    absl::StrAppend(&command, " coordinator --listen ", options.listen);
  }
  absl::StrAppend(&command, " --resume --run-dir ", plan.shown_run_dir, HostsOptions(options));
  if (options.slurm) return absl::StrCat("srun -N", options.slurm->nodes.size(), " ", command);
  if (cluster.role != Role::kHost || !cluster.runs_agent) return command;
  const v1::JobSpec& spec = plan.spec;  // a resumed job may have its nodes from before
  const std::string nodes = spec.nodes_min() == spec.nodes_max()
                                ? absl::StrCat(spec.nodes_max())
                                : absl::StrCat(spec.nodes_min(), ":", spec.nodes_max());
  return absl::StrCat(command, " --nnodes ", nodes, " --coordinator ", cluster.endpoint,
                      AddressOption(options), " (on each node)");
}

// Who this node is, beside what the plan of the job says.
std::string WithNode(const std::string& facts_json, const ClusterPlan& cluster) {
  Json facts = Json::parse(facts_json, nullptr, false);
  if (!facts.is_object() || cluster.role == Role::kAlone) return facts_json;
  facts["coordinator"] = cluster.endpoint;
  facts["tls"] = cluster.security.TlsServer();
  if (cluster.runs_agent) {
    facts["node"] = cluster.node;
    facts["address"] = cluster.address;
    facts["network_card"] = cluster.card;
  }
  return facts.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void SayStart(const RunPlan& plan, View* view) {
  const v1::JobSpec& spec = plan.spec;
  const std::string workers = plan.world_size == 0   ? "workers"
                              : plan.world_size == 1 ? "1 worker"
                                                     : absl::StrCat(plan.world_size, " workers");
  view->Say(absl::StrCat("job ", spec.job_id(), ": ", workers, " (", spec.device(),
                         "), run folder ", plan.shown_run_dir,
                         ", logs in logs/g<generation>/rank<rank>.log there"));
  for (const std::string& note : plan.notes) view->Say(note);
}

void SayNode(const ClusterPlan& cluster, uint32_t nodes, View* view) {
  for (const std::string& note : cluster.notes) view->Say(note);
  if (cluster.role != Role::kHost || !cluster.runs_agent) return;
  const std::string card = cluster.card.empty() ? "" : absl::StrCat(" (", cluster.card, ")");
  view->Say(absl::StrCat("node ", cluster.node, " at ", cluster.address, card,
                         " hosts the coordinator at ", cluster.endpoint, " for up to ", nodes,
                         " nodes; the others join by the same command"));
}

void MakeRoom(const std::string& run_dir, uint32_t keep) {
  const Removed removed = RemoveOldRuns(run_dir, keep);
  std::vector<std::string> lines = removed.problems;
  if (removed.runs > 0) lines.push_back(RemovedLine(removed, keep));
  for (const std::string& line : lines) PrintError(line);
}

std::string HostOf(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

// What is needed from the coordinator's start to the job's end.
class JobRun {
 public:
  JobRun(const Options& options, const RunPlan& plan, const Surroundings& here,
         const ClusterPlan& cluster, const std::optional<HostsPlan>& hosts)
      : options_(options),
        plan_(plan),
        here_(here),
        cluster_(cluster),
        hosts_(hosts),
        view_(&console_, plan.spec.nodes_min(), plan.spec.nodes_max(), cluster.expected_nodes) {}

  int Run() {
    const auto start = std::chrono::steady_clock::now();
    absl::Status status = Start();
    if (!status.ok()) {
      PrintError(status);
      // The folder was taken between our look and our start.
      return status.code() == absl::StatusCode::kFailedPrecondition ? kExitBadUsage : kExitInternal;
    }
    const bool agent_ended_badly = WaitForAgent();
    coordinator::Outcome outcome = server_->WaitForEnd();
    if (remote_agents_) remote_agents_->End();
    session_->WaitForLastEvent();
    signals_.reset();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    ShowSummary(took.count());
    if (options_.requeue && session_->was_signalled() && outcome.exit_code == 128 + SIGTERM) {
      view_.Say(RequeueSlurmJob(options_.slurm_job));
    }
    console_.Flush(kFlushSecondsMax);
    if (agent_refused_) return kExitBadUsage;
    // The job could not go on without its only node, whatever it calls its end.
    if (agent_ended_badly && outcome.exit_code == 0 && outcome.status != "succeeded")
      return kExitInternal;
    return outcome.exit_code;
  }

 private:
  absl::Status Start() {
    coordinator::ServerOptions server;
    server.listen_address = cluster_.listen_address;
    server.security = cluster_.security;
    server.version = here_.version;
    server.job_facts_json = WithNode(plan_.job_facts_json, cluster_);
    server.point_latest = plan_.point_latest;
    auto started = coordinator::CoordinatorServer::Start(std::move(server));
    if (!started.ok()) return started.status();
    server_ = *std::move(started);
    session_.emplace(server_->InProcessChannel(), &view_,
                     options_.stop_signals.value_or(kStopSignals));
    absl::Status status = session_->Submit(plan_.spec);
    if (!status.ok()) return status;
    SayStart(plan_, &view_);
    SayNode(cluster_, plan_.spec.nodes_max(), &view_);
    const bool several = cluster_.role == Role::kHost;
    signals_.emplace([this](int signal) { session_->OnSignal(signal); },
                     several ? std::function<void()>([this] { session_->OnTick(); }) : nullptr,
                     kTickSeconds);
    session_->StartWatching();
    if (options_.command == Command::kCoordinator) {
      std::printf("listening on %s:%d\n", HostOf(options_.listen).c_str(), server_->port());
      std::fflush(stdout);
    }
    if (cluster_.on_listening) status = cluster_.on_listening(server_->port());
    if (!status.ok()) {
      session_->Control(v1::ControlRequest::KILL, 0);
      return status;
    }
    if (hosts_) StartRemoteAgents();
    return cluster_.runs_agent ? StartAgent() : absl::OkStatus();
  }

  void StartRemoteAgents() {
    view_.Say(HostsLine(*hosts_, server_->port()));
    if (!plan_.spec.needs_shared_run_dir()) {
      view_.Say(
          "each host writes the log files of its workers to this run folder: one place where the "
          "hosts share it, else its own");
    }
    RemoteAgentsOptions agents = AgentsOf(*hosts_, options_, here_, plan_.spec.job_id(),
                                          cluster_.security.secret, server_->port());
    agents.console = &console_;
    agents.on_too_few = [this](const std::string& reason) {
      view_.Say(absl::StrCat(reason, ": the job ends"));
      session_->Control(v1::ControlRequest::NO_MORE_NODES, 0);
    };
    remote_agents_.emplace(std::move(agents));
  }

  absl::Status StartAgent() {
    agent::AgentOptions agent;
    agent.identity.job_id = plan_.spec.job_id();
    agent.identity.node = cluster_.node;
    agent.identity.version = here_.version;
    agent.channel = server_->InProcessChannel();
    agent.security = cluster_.security;
    if (cluster_.role == Role::kHost) {
      agent.identity.address = cluster_.address;
      agent.identity.slots = cluster_.slots;
      agent.identity.node_rank_wanted = cluster_.node_rank;
      agent.several_nodes = true;
    } else {
      agent.identity.address = options_.torchrun.local_address.value_or(
          options_.advertise_address.value_or(LoopbackAddress()));
      agent.identity.slots = plan_.spec.processes_per_node();
    }
    agent.keeper_path = JoinPath(here_.binary_folder, "ddprun-keeper");
    agent.worker_path = JoinPath(here_.binary_folder, "ddp-worker");
    agent.console = &console_;
    agent.machine = here_.machine;
    auto started = agent::Agent::Start(std::move(agent));
    if (!started.ok()) {
      session_->Control(v1::ControlRequest::KILL, 0);
      return started.status();
    }
    agent_ = *std::move(started);
    return absl::OkStatus();
  }

  // True when the job's only node left before the job was over, which ends it.
  bool WaitForAgent() {
    if (agent_ == nullptr) return false;
    const agent::AgentEnd end = agent_->WaitForEnd();
    if (end.job_over) return false;
    view_.Say(absl::StrCat("this node cannot go on: ", end.reason));
    // What was typed for this node is wrong, and was typed for the job as well.
    agent_refused_ = end.never_joined && end.exit_code == kExitBadUsage;
    // With others the coordinator decides, as about any node that is lost.
    if (cluster_.role == Role::kHost && !agent_refused_) return false;
    session_->Control(v1::ControlRequest::KILL, 0);
    return true;
  }

  void ShowSummary(double seconds) {
    const auto text = PosixFileSystem().ReadFile(JoinPath(plan_.spec.run_dir(), "result.json"));
    const Json result = text.ok() ? Json::parse(*text, nullptr, false) : Json();
    if (!result.is_object()) return;  // the coordinator has said why it could not be written
    SummaryContext context;
    context.run_dir = plan_.shown_run_dir;
    context.resume_command = ResumeCommand(options_, plan_, here_, cluster_);
    context.trainer = !plan_.spec.train_config_json().empty();
    context.seconds = seconds;
    view_.Finish(result, context);
  }

  bool agent_refused_ = false;
  const Options& options_;
  const RunPlan& plan_;
  const Surroundings& here_;
  const ClusterPlan& cluster_;
  const std::optional<HostsPlan>& hosts_;
  // Destroyed from the last to the first.
  Console console_;
  View view_;
  std::unique_ptr<coordinator::CoordinatorServer> server_;
  std::optional<JobSession> session_;
  std::unique_ptr<agent::Agent> agent_;
  std::optional<RemoteAgents> remote_agents_;
  std::optional<SignalThread> signals_;
};

// Before the run folder is made: files that may be open, and a place to listen on. A host of
// another kind has looked at its port when it took its role.
absl::Status CheckResources(const Options& options, const ClusterPlan& cluster, uint32_t workers) {
  absl::Status files = HaveOpenFiles(OpenFilesNeeded(workers));
  if (!files.ok() || cluster.role != Role::kHost || cluster.runs_agent) return files;
  const std::string& place = cluster.listen_address;
  const std::string host = net::SplitEndpoint(place).host;
  const bool any = host == "0.0.0.0" || host == "::";
  std::string why = any ? "" : net::WhyNobodysAddress(host);
  if (!why.empty()) why = absl::StrCat(host, " ", why);
  if (why.empty()) {
    const auto opened = net::Listener::Open(place);
    if (opened.ok()) return absl::OkStatus();
    why = std::string(opened.status().message());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      options.hosts ? "--coordinator " : "--listen ", place, ": ", why,
      "; give an address of this machine (0.0.0.0 or [::]: all of them) and a port that is free"));
}

// Like PlanClusterOrExplain.
std::optional<ClusterPlan> PlanHostsOrExplain(const Options& options, const Surroundings& here,
                                              std::optional<HostsPlan>* hosts, int* code) {
  *code = kExitBadUsage;
  absl::StatusOr<HostsPlan> planned = PlanHosts(options, here);
  if (planned.ok()) {
    hosts->emplace(*std::move(planned));
    absl::StatusOr<ClusterPlan> cluster = ClusterOf(**hosts, options, here);
    if (cluster.ok()) return *std::move(cluster);
    planned = cluster.status();
  }
  PrintError(planned.status());
  return std::nullopt;
}

void NoteSharedMemory(RunPlan* plan) {
  const doctor::Outcome looked = doctor::CheckSharedMemory({});
  const std::string note = doctor::SharedMemoryNote(looked.findings[0], plan->spec.device(),
                                                    plan->spec.processes_per_node());
  if (!note.empty()) plan->notes.push_back(note);
}

}  // namespace

int RunJob(const Options& typed, const Surroundings& here) {
  Options options = typed;
  absl::Status hosts_fit = ApplyHosts(&options);
  if (!hosts_fit.ok()) {
    PrintError(hosts_fit);
    return kExitBadUsage;
  }
  int code = 0;
  std::optional<HostsPlan> hosts;
  const std::optional<ClusterPlan> cluster = options.hosts
                                                 ? PlanHostsOrExplain(options, here, &hosts, &code)
                                                 : PlanClusterOrExplain(options, here, &code);
  if (!cluster) return code;
  if (cluster->role == Role::kMember && options.dry_run) {
    std::fputs(MemberDryRunText(*cluster).c_str(), stdout);
    return 0;
  }
  if (cluster->role == Role::kMember) return RunMember(options, here, *cluster);
  // The others are told, too, where they wait for this node.
  const auto not_started = [&cluster](int exit_code) {
    if (cluster->on_not_started) cluster->on_not_started(exit_code);
    return exit_code;
  };
  absl::StatusOr<RunPlan> plan = PlanRun(options, here);
  if (!plan.ok()) {
    PrintError(plan.status());
    return not_started(kExitBadUsage);
  }
  if (!plan->already_done.empty()) {
    std::fprintf(stderr, "ddprun: %s\n", plan->already_done.c_str());
    return not_started(0);
  }
  NoteSharedMemory(&*plan);
  if (const int bad = CheckByWorker(*plan, here, options.stop_signals.value_or(kStopSignals));
      bad != 0) {
    return not_started(bad);
  }
  if (options.dry_run) {
    std::fputs(DryRunText(options, *plan, here, *cluster).c_str(), stdout);
    if (hosts) std::fputs(HostsText(*hosts, options).c_str(), stdout);
    return 0;
  }
  const uint32_t workers =
      cluster->role == Role::kAlone ? plan->spec.processes_per_node() : cluster->slots;
  const absl::Status possible = CheckResources(options, *cluster, workers);
  if (!possible.ok()) {
    PrintError(possible);
    return not_started(kExitBadUsage);
  }
  absl::Status made = MakeRunFolder(plan->spec.run_dir());
  if (!made.ok()) {
    PrintError(made);
    return not_started(kExitBadUsage);
  }
  if (options.keep_runs) MakeRoom(plan->spec.run_dir(), *options.keep_runs);
  return JobRun(options, *plan, here, *cluster, hosts).Run();
}

}  // namespace ddprun::cli
