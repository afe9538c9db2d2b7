// What makes no sense together, or at all, for a command.
#include "absl/strings/str_cat.h"
#include "launcher/cli/app.h"

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
  const uint32_t nodes = o.nodes_max.value_or(1);
  if (nodes > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--nnodes ", nodes, ": `ddprun run` has one node; for several, start\n",
        "  ddprun coordinator --listen HOST:PORT --nnodes ", nodes, " …\n",
        "on one of them, and on each\n", "  ddprun agent --coordinator HOST:PORT --nproc N"));
  }
  if (o.node_rank.value_or(0) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node-rank ", *o.node_rank,
                     ": `ddprun run` has one node, of rank 0; for several see --nnodes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCombination(const Options& o) {
  if (o.command == Command::kAgent) return CheckAgent(o);
  if (!o.config_path.empty() && !o.program.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(o.config_path, ": give a configuration or a program, not both"));
  }
  if (o.command == Command::kCoordinator && o.listen.empty()) {
    return absl::InvalidArgumentError(
        "--listen: missing; ddprun coordinator --listen HOST:PORT … (port 0 lets the system "
        "choose)");
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
  return CheckNodes(o);
}

}  // namespace ddprun::cli
