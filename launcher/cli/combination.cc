// What makes no sense together, or at all, for a command.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/cli/app.h"
#include "launcher/cli/meeting.h"
#include "launcher/cli/signals.h"
#include "launcher/cli/supervision_values.h"
#include "launcher/cli/torchrun_values.h"
#include "launcher/cli/values.h"

namespace ddprun::cli {
namespace {

absl::Status CheckAgent(const Options& o) {
  if (!o.config_path.empty() || !o.program.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(o.config_path.empty() ? o.program[0] : o.config_path,
                     ": an agent runs what its coordinator says; the job is given there"));
  }
  if (o.coordinator.empty()) {
    return absl::InvalidArgumentError(
        "--coordinator: missing; ddprun agent --coordinator HOST:PORT");
  }
  return absl::OkStatus();
}

absl::Status CheckNodes(const Options& o) {
  if (o.command != Command::kRun) return absl::OkStatus();
  const TorchrunOptions& t = o.torchrun;
  if (!o.coordinator.empty() && (t.rdzv_endpoint || t.master_address) && !t.standalone) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator ", o.coordinator, ": says where the nodes meet, and so does ",
                     t.rdzv_endpoint ? "--rdzv-endpoint" : "--master-addr", "; give one"));
  }
  if (!o.coordinator.empty() && !o.nodes_max && !o.resume && !o.hosts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator ", o.coordinator,
                     ": how many nodes will come? give --nnodes N, or MIN:MAX, on each of them"));
  }
  // L48: a place that no node can have would be refused at joining, also by a host to itself.
  const uint32_t nodes = o.nodes_max.value_or(1);
  if (nodes > 1 && o.node_rank && static_cast<uint32_t>(*o.node_rank) >= nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node-rank ", *o.node_rank, ": is none of 0 to ", nodes - 1, " (--nnodes ",
                     NodesText(o), "); a spare node has no rank: leave it away"));
  }
  if (t.standalone && o.nodes_max.value_or(1) > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--standalone: means one node, and --nnodes says ", *o.nodes_max,
                     "; leave one of them away"));
  }
  return absl::OkStatus();
}

absl::Status CheckAddresses(const Options& o) {
  const auto& local = o.torchrun.local_address;
  if (o.advertise_address && local && *o.advertise_address != *local) {
    return absl::InvalidArgumentError(absl::StrCat("--advertise-addr ", *o.advertise_address,
                                                   " and --local-addr ", *local,
                                                   " say the same thing; give one"));
  }
  if (o.interface && (o.advertise_address || local)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--iface ", *o.interface, ": chooses an address, and ",
                     o.advertise_address ? "--advertise-addr" : "--local-addr",
                     " gives one; leave one of them away"));
  }
  return absl::OkStatus();
}

absl::Status Clash(absl::string_view text) {
  return absl::InvalidArgumentError(text);
}

absl::Status CheckPython(const Options& o) {
  const TorchrunOptions& t = o.torchrun;
  const char* flag = t.module      ? "--module"
                     : t.run_path  ? "--run-path"
                     : t.no_python ? "--no-python"
                                   : nullptr;
  if (flag == nullptr) return absl::OkStatus();
  if (t.module && t.no_python) {
    return Clash("--module and --no-python: a module needs Python; leave one of them away");
  }
  if (t.module && t.run_path) {
    return Clash("--module and --run-path: give a module or a file, not both");
  }
  if (!o.config_path.empty()) {
    return Clash(absl::StrCat(flag, ": is for a program; ", o.config_path,
                              " is run by the built-in trainer"));
  }
  if (!o.torchrun_way && !o.program.empty() && !t.no_python) {
    return Clash(absl::StrCat(flag,
                              ": behind -- a program is executed as it stands; leave -- away, ",
                              "or write -- python3 …"));
  }
  return absl::OkStatus();
}

// Two ways to say one thing.
absl::Status CheckPlaces(const Options& o) {
  const TorchrunOptions& t = o.torchrun;
  if (t.log_dir && o.run_dir) {
    return Clash(absl::StrCat("--log-dir ", *t.log_dir,
                              ": run folders are made in it, and --run-dir ", *o.run_dir,
                              " names one; leave one of them away"));
  }
  if (t.rdzv_id && o.job_id && *t.rdzv_id != *o.job_id && !t.standalone) {
    return Clash(absl::StrCat("--rdzv-id ", *t.rdzv_id, ": is the job's name, and so is --job-id ",
                              *o.job_id, "; give one"));
  }
  if (t.rdzv_endpoint && !t.standalone && (t.master_address || t.master_port)) {
    return Clash(absl::StrCat("--rdzv-endpoint ", *t.rdzv_endpoint,
                              ": says MASTER_ADDR and MASTER_PORT, and so does ",
                              t.master_address ? "--master-addr" : "--master-port", "; give one"));
  }
  if (t.local_ranks_shown && o.log_ranks) {
    return Clash("--local-ranks-filter and --log-ranks: both choose what is shown; give one");
  }
  return absl::OkStatus();
}

absl::Status CheckConsole(const Options& o) {
  const TorchrunOptions& t = o.torchrun;
  if (!t.redirects) return absl::OkStatus();
  for (uint32_t rank = 0; rank < kProcessesPerNodeMax; ++rank) {
    const int shown = ShownStreams(t, rank);
    if (shown == 0 || shown == 3) continue;
    return Clash(absl::StrCat(
        "--redirects: only std", shown == 1 ? "out" : "err", " of local rank ", rank,
        " would be shown, but a worker's stdout and stderr come through one pipe, so that their "
        "order is kept: give 3 (show neither) or 0 (show both); the log file holds both"));
  }
  return absl::OkStatus();
}

absl::Status CheckSupervision(const Options& o) {
  const auto in_both = [&](int32_t code) {
    return std::find(o.no_restart_on->begin(), o.no_restart_on->end(), code) !=
           o.no_restart_on->end();
  };
  if (o.restart_on && o.no_restart_on) {
    const auto both = std::find_if(o.restart_on->begin(), o.restart_on->end(), in_both);
    if (both != o.restart_on->end()) {
      return Clash(absl::StrCat("--restart-on and --no-restart-on: both name code ", *both));
    }
  }
  if (o.resume) return absl::OkStatus();  // the other half may be the earlier part's
  if (o.restart_on && o.max_restarts.value_or(1) == 0) {
    return Clash("--restart-on: has no effect with --max-restarts 0; leave one of them away");
  }
  if (o.restart_window_seconds && o.max_restarts.value_or(1) == 0) {
    return Clash("--restart-window: has no effect with --max-restarts 0; leave one of them away");
  }
  if (o.log_files && o.log_bytes_max.value_or(0) == 0) {
    return Clash(
        "--log-files: has no effect without --log-max-size; for example --log-max-size 100M");
  }
  if (o.health_check_timeout_seconds && !o.health_check) {
    return Clash("--health-check-timeout: has no effect without --health-check 'COMMAND'");
  }
  const uint32_t strikes = o.node_strikes.value_or(SeveralNodes(o) ? 1 : 0);
  if (o.node_cooldown_seconds && strikes == 0) {
    return Clash("--node-cooldown: has no effect without --node-strikes N");
  }
  return absl::OkStatus();
}

// What says nothing with so many nodes (D3, L48).
absl::Status CheckMembership(const Options& o) {
  if (o.resume) return absl::OkStatus();  // the other half may be the earlier part's
  if (!SeveralNodes(o) && !o.slurm) {
    const char* option = o.wait_for_replacement       ? "--on-node-loss"
                         : o.keep_size                ? "--keep-size"
                         : !o.tls_certificate.empty() ? "--tls-cert"
                         : !o.tls_key.empty()         ? "--tls-key"
                         : !o.tls_ca.empty()          ? "--tls-ca"
                                                      : nullptr;
    if (option == nullptr) return absl::OkStatus();
    return Clash(
        absl::StrCat(option, ": has no effect with one node; give --nnodes, or leave ", "it away"));
  }
  if (o.nodes_max && o.nodes_min.value_or(1) < *o.nodes_max) return absl::OkStatus();
  if (o.keep_size) {
    return Clash("--keep-size: has no effect where no node may be missing; give --nnodes MIN:MAX");
  }
  if (o.wait_for_replacement && !*o.wait_for_replacement) {
    return Clash(
        "--on-node-loss shrink: contradicts a number of nodes of which none may be missing; give "
        "--nnodes MIN:MAX, or leave it away: the others wait for another node");
  }
  return absl::OkStatus();
}

absl::Status CheckSignals(const Options& o) {
  if (!o.forwarded_signals) return absl::OkStatus();
  const std::vector<int32_t> stops = o.stop_signals.value_or(kStopSignals);
  for (int32_t signal : *o.forwarded_signals) {
    if (std::find(stops.begin(), stops.end(), signal) == stops.end()) continue;
    return Clash(absl::StrCat("--forward-signals: ", SignalName(signal),
                              " stops the job; forward another one, or leave "
                              "it out of --signals-to-handle"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCombination(const Options& o) {
  absl::Status addresses = CheckAddresses(o);
  if (!addresses.ok()) return addresses;
  if (o.command == Command::kAgent) return CheckAgent(o);
  if (o.command == Command::kCkpt) return CheckCkpt(o);
  if (o.command == Command::kTokens) return CheckTokens(o);
  if (o.command == Command::kPlan && !o.program.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        o.program[0], ": plan is for a train.cfg; nobody can tell what a program will take"));
  }
  if (o.command == Command::kLogs || o.command == Command::kDoctor) return absl::OkStatus();
  if (!o.config_path.empty() && !o.program.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(o.config_path, ": give a configuration or a program, not both"));
  }
  if (o.command == Command::kCoordinator && o.listen.empty()) {
    return absl::InvalidArgumentError(
        "--listen: missing; ddprun coordinator --listen HOST:PORT … (port 0 lets the system "
        "choose)");
  }
  if (o.command == Command::kPlan && o.config_path.empty()) {
    return absl::InvalidArgumentError("plan: plan what? ddprun plan --nproc 4 train.cfg");
  }
  if (!o.resume && o.config_path.empty() && o.program.empty()) {
    return absl::InvalidArgumentError(
        "there is nothing to run: give a train.cfg or a program, for example\n"
        "  ddprun --nproc 4 train.cfg\n"
        "  ddprun --nproc 4 -- python3 train.py\n"
        "ddprun --help shows more");
  }
  if (!o.overrides.empty() && !o.program.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--set ", o.overrides[0], ": changes a train.cfg; a program has its own arguments"));
  }
  if (o.gpus && o.device.value_or("auto") == "cpu") {
    return absl::InvalidArgumentError(
        "--gpus: has no effect with --device cpu; leave one of them away");
  }
  for (auto check :
       {CheckPython, CheckPlaces, CheckConsole, CheckSupervision, CheckMembership, CheckSignals}) {
    absl::Status status = check(o);
    if (!status.ok()) return status;
  }
  return CheckNodes(o);
}

}  // namespace ddprun::cli
