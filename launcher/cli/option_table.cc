#include "launcher/cli/option_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/edit_distance.h"
#include "launcher/cli/values.h"

namespace ddprun::cli {
namespace {

constexpr unsigned kJob = kForRun | kForCoordinator;
constexpr unsigned kAll = kForRun | kForCoordinator | kForAgent;

constexpr char kWhat[] = "What to run";
constexpr char kWhere[] = "Where the results go";
constexpr char kFailures[] = "Failures and stops";
constexpr char kNodes[] = "Nodes";
constexpr char kOther[] = "Other";

// Stores what a value parser gave.
template <typename T, typename Field>
absl::Status Store(absl::StatusOr<T> value, Field* field) {
  if (!value.ok()) return value.status();
  *field = *std::move(value);
  return absl::OkStatus();
}

using Text = const std::string&;

absl::Status SetNodes(Text text, Options* o) {
  const auto nodes = ParseNodes(text);
  if (!nodes.ok()) return nodes.status();
  o->nodes_min = nodes->first;
  o->nodes_max = nodes->second;
  return absl::OkStatus();
}

absl::Status SetDevice(Text text, Options* o) {
  if (text != "auto" && text != "cpu" && text != "cuda") {
    return absl::InvalidArgumentError("give auto, cpu or cuda");
  }
  o->device = text;
  return absl::OkStatus();
}

absl::Status SetNodeRank(Text text, Options* o) {
  const auto rank = ParseCount(text, 0, kNodesMax - 1);
  if (!rank.ok()) return rank.status();
  o->node_rank = static_cast<int32_t>(*rank);
  return absl::OkStatus();
}

std::vector<OptionRow> WhatRows() {
  return {
      {"--nproc,--nproc-per-node", "N|gpu|cpu|auto", kAll, kWhat,
       "Worker processes on each node: a number, one for each GPU, one for each core, or auto "
       "(GPUs, else cores). Default 1",
       [](Text v, Options* o) { return Store(ParseProcesses(v), &o->processes); }},
      {"--device", "auto|cuda|cpu", kJob, kWhat,
       "What the workers compute on. Default auto: GPUs where there are any",
       [](Text v, Options* o) { return SetDevice(v, o); }},
      {"--gpus", "LIST", kJob, kWhat,
       "The GPUs to use, as indices or UUIDs, for example 0,2. Default: all that are visible",
       [](Text v, Options* o) { return Store(ParseGpus(v), &o->gpus); }},
      {"--set", "SECTION.KEY=VALUE", kJob, kWhat,
       "Overrides a key of train.cfg, for example train.lr=0.01; may repeat",
       [](Text v, Options* o) {
         o->overrides.push_back(v);
         return absl::OkStatus();
       }},
      {"--dry-run", "", kJob, kWhat, "Shows ranks, configuration and environment; starts nothing",
       [](Text, Options* o) {
         o->dry_run = true;
         return absl::OkStatus();
       }},
  };
}

std::vector<OptionRow> WhereRows() {
  return {
      {"--run-dir", "DIR", kJob, kWhere,
       "Run folder. Default runs/<job id>; runs/latest points there",
       [](Text v, Options* o) {
         o->run_dir = v;
         return absl::OkStatus();
       }},
      {"--job-id", "NAME", kAll, kWhere,
       "Name of the job. Default: date, time and four random digits",
       [](Text v, Options* o) { return Store(ParseName(v), &o->job_id); }},
      {"--resume", "", kJob, kWhere,
       "Goes on with the job in the run folder, from its newest checkpoint; alone, with the newest "
       "run",
       [](Text, Options* o) {
         o->resume = true;
         return absl::OkStatus();
       }},
      {"--log-ranks", "LIST", kJob, kWhere,
       "Ranks whose output is shown here, for example 0 or 0,4-7, or all. Log files hold all. "
       "Default all",
       [](Text v, Options* o) { return Store(ParseRanks(v), &o->log_ranks); }},
  };
}

std::vector<OptionRow> FailureRows() {
  return {
      {"--max-restarts", "N", kJob, kFailures,
       "Restarts after failures, all in all. Default 3; three failures in a row before the workers "
       "have got going end the job earlier, unless this option is given",
       [](Text v, Options* o) { return Store(ParseCount(v, 0, kRestartsMax), &o->max_restarts); }},
      {"--grace", "SECONDS", kJob, kFailures,
       "Time that workers get to save and leave when they are stopped, before they are killed. "
       "Default 30",
       [](Text v, Options* o) { return Store(ParseSeconds(v), &o->grace_seconds); }},
      {"--min-uptime", "SECONDS", kJob, kFailures,
       "A program that has run for so long has got going. Default 30",
       [](Text v, Options* o) { return Store(ParseSeconds(v), &o->min_uptime_seconds); }},
      {"--lease", "SECONDS", kJob, kFailures,
       "Workers end when their node hears nothing of the coordinator for so long, and it replaces "
       "a silent node 1 s later; 0: never. Default 0 for run, 3 for coordinator",
       [](Text v, Options* o) { return Store(ParseSeconds(v), &o->lease_seconds); }},
  };
}

std::vector<OptionRow> NodeRows() {
  return {
      {"--listen", "HOST:PORT", kForCoordinator, kNodes,
       "Where agents reach this coordinator; port 0 lets the system choose (required)",
       [](Text v, Options* o) { return Store(ParseAddress(v, true), &o->listen); }},
      {"--coordinator", "HOST:PORT", kForAgent, kNodes, "The coordinator to attach to (required)",
       [](Text v, Options* o) { return Store(ParseAddress(v, false), &o->coordinator); }},
      {"--node", "NAME", kForAgent, kNodes,
       "Name of this node; each node needs another. Default: the host's name",
       [](Text v, Options* o) { return Store(ParseName(v), &o->node); }},
      {"--nnodes", "N|MIN:MAX", kJob, kNodes,
       "Number of nodes. Default 1; more need `ddprun coordinator` and an agent on each node",
       [](Text v, Options* o) { return SetNodes(v, o); }},
      {"--node-rank", "N", kForRun | kForAgent, kNodes,
       "Wished place of this node among all, from 0. Default: in the order of coming",
       [](Text v, Options* o) { return SetNodeRank(v, o); }},
      {"--join-timeout", "SECONDS", kJob, kNodes, "How long to wait for enough nodes. Default 600",
       [](Text v, Options* o) { return Store(ParseSeconds(v), &o->join_timeout_seconds); }},
      {"--standalone", "", kForRun, kNodes, "As torchrun has it; run always is",
       [](Text, Options*) { return absl::OkStatus(); }},
      {"-h,--help", "", kAll, kOther, "Shows this text", nullptr},
      {"--version", "", kAll, kOther, "Shows the version", nullptr},
  };
}

// What people type who come from elsewhere, and a word of ours for it.
constexpr std::pair<const char*, const char*> kForeignNames[] = {
    {"-n", "--nproc"},
    {"-np", "--nproc"},
    {"--np", "--nproc"},
    {"--gpu-ids", "--gpus"},
    {"--devices", "--gpus"},
    {"--log-dir", "--run-dir"},
    {"--rdzv-id", "--job-id"},
    {"--shutdown-timeout", "--grace"},
    {"--output-dir", "--run-dir"},
    {"--local-ranks-filter", "--log-ranks"},
    {"--max-restart", "--max-restarts"},
    {"--num-processes", "--nproc"},
    {"--num-machines", "--nnodes"},
    {"--machine-rank", "--node-rank"},
    {"--override", "--set"},
    {"--continue", "--resume"},
};

constexpr size_t kNameBytesMax = 64;  // the distance is quadratic

}  // namespace

const std::vector<OptionRow>& OptionRows() {
  static const std::vector<OptionRow>* const rows = [] {
    auto* all = new std::vector<OptionRow>(WhatRows());
    for (auto part : {WhereRows(), FailureRows(), NodeRows()}) {
      all->insert(all->end(), part.begin(), part.end());
    }
    return all;
  }();
  return *rows;
}

std::string_view FirstName(const OptionRow& row) {
  const std::string_view names = row.names;
  return names.substr(0, names.find(','));
}

const OptionRow* FindOption(std::string_view name, unsigned command) {
  for (const OptionRow& row : OptionRows()) {
    if ((row.commands & command) == 0) continue;
    for (absl::string_view own : absl::StrSplit(row.names, ',')) {
      if (own == absl::string_view(name.data(), name.size())) return &row;
    }
  }
  return nullptr;
}

std::string SuggestOption(std::string_view name, unsigned command) {
  for (const auto& [foreign, ours] : kForeignNames) {
    if (name == foreign && FindOption(ours, command) != nullptr) {
      return absl::StrCat("; did you mean ", ours, "?");
    }
  }
  if (name.size() > kNameBytesMax || name.size() < 3) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const OptionRow& row : OptionRows()) {
    if ((row.commands & command) == 0) continue;
    for (absl::string_view own : absl::StrSplit(row.names, ',')) {
      // What is only a part of a name (--nodes for --nnodes, --restarts for --max-restarts) is
      // near.
      const size_t distance = EditDistance(name, std::string_view(own.data(), own.size()));
      if (distance < best_distance) {
        best_distance = distance;
        best = std::string(own);
      }
    }
  }
  return best.empty() ? "" : absl::StrCat("; did you mean ", best, "?");
}

}  // namespace ddprun::cli
