#include "launcher/cli/dry_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"

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

std::string Ranks(const Options& options, const RunPlan& plan) {
  const v1::JobSpec& spec = plan.spec;
  if (options.command == Command::kCoordinator) {
    const std::string each = spec.processes_per_node() == 0
                                 ? "as many workers as its agent offers"
                                 : absl::StrCat(spec.processes_per_node(), " workers");
    return absl::StrCat("ranks: on ", spec.nodes_min(), " to ", spec.nodes_max(),
                        " nodes, on each ", each, ", in the order in which the nodes come\n");
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

}  // namespace

std::string DryRunText(const Options& options, const RunPlan& plan, const Surroundings& here) {
  const v1::JobSpec& spec = plan.spec;
  std::string text = absl::StrCat(
      "job ", spec.job_id(), spec.resume() ? " (resumed)" : "", "\n",
      "run folder: ", spec.run_dir(), "\n", "each worker executes: ", CommandText(plan, here), "\n",
      "in: ", spec.working_dir(), "\n", "device: ", spec.device(), "\n");
  absl::StrAppend(&text, Ranks(options, plan));
  absl::StrAppend(
      &text, "restarts: at most ", spec.restart().max_restarts(), "; grace ", spec.grace_seconds(),
      " s; lease ",
      spec.lease_seconds() > 0 ? absl::StrCat(spec.lease_seconds(), " s") : std::string("none"),
      "\n");
  absl::StrAppend(
      &text,
      "added to the environment, besides torchrun's, Paddle's and ddprun's own variables:\n");
  for (const std::string& variable : plan.variables) absl::StrAppend(&text, "  ", variable, "\n");
  if (plan.variables.empty()) absl::StrAppend(&text, "  nothing\n");
  if (!spec.train_config_json().empty())
    absl::StrAppend(&text, Configuration(spec.train_config_json()));
  for (const std::string& note : plan.places.notes) absl::StrAppend(&text, "note: ", note, "\n");
  if (!plan.places.threads.empty()) absl::StrAppend(&text, "note: ", plan.places.threads, "\n");
  for (const std::string& note : plan.notes) absl::StrAppend(&text, "note: ", note, "\n");
  return text;
}

}  // namespace ddprun::cli
