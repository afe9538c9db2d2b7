#include "launcher/cli/slurm.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/cli/options.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

using Variables = std::map<std::string, std::string>;

// From here on Slurm numbers what is no step of srun: batch script, extern, interactive, pending.
constexpr uint32_t kSpecialStepMin = 0xfffffff0;

std::string ValueOf(const Variables& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

absl::Status Odd(absl::string_view name, absl::string_view value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", net::Shown(value), ": is not ", expected,
                   "; Slurm sets it: start with srun, or unset the SLURM_ variables (env -u)"));
}

// `otherwise` where the variable is not set.
absl::StatusOr<uint32_t> NumberOf(const Variables& environment, const std::string& name,
                                  uint32_t otherwise) {
  const std::string value = ValueOf(environment, name);
  if (value.empty()) return otherwise;
  uint32_t number = 0;
  if (!absl::SimpleAtoi(value, &number)) return Odd(name, value, "a number");
  return number;
}

// What follows a name in brackets: 001-003,7.
absl::Status AppendRanges(absl::string_view ranges, std::vector<std::string>* numbers) {
  for (const absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(range, '-');
    const absl::string_view last =
        range.find('-') == absl::string_view::npos ? ends.first : ends.second;
    uint32_t low = 0;
    uint32_t high = 0;
    const bool digits = range.find_first_not_of("0123456789-") == absl::string_view::npos &&
                        std::count(range.begin(), range.end(), '-') <= 1;
    if (!digits || !absl::SimpleAtoi(ends.first, &low) || !absl::SimpleAtoi(last, &high) ||
        high < low || high - low >= kSlurmNodesMax) {
      return absl::InvalidArgumentError(absl::StrCat("[", ranges, "] is no list of numbers"));
    }
    for (uint32_t i = low; i <= high; ++i) {
      numbers->push_back(absl::StrFormat("%0*d", static_cast<int>(ends.first.size()), i));
    }
  }
  return absl::OkStatus();
}

// Appends each of `ends` to each of `begins`.
absl::Status Multiply(const std::vector<std::string>& ends, std::vector<std::string>* begins) {
  if (begins->size() * ends.size() > kSlurmNodesMax) {
    return absl::InvalidArgumentError(absl::StrCat("has more than ", kSlurmNodesMax, " nodes"));
  }
  std::vector<std::string> all;
  all.reserve(begins->size() * ends.size());
  for (const std::string& begin : *begins) {
    for (const std::string& end : ends) all.push_back(begin + end);
  }
  *begins = std::move(all);
  return absl::OkStatus();
}

// One name with any number of brackets in it; takes it off the front of `*list`.
absl::StatusOr<std::vector<std::string>> TakeName(absl::string_view* list) {
  std::vector<std::string> names = {""};
  while (!list->empty() && list->front() != ',') {
    std::vector<std::string> ends;
    if (list->front() == '[') {
      const size_t close = list->find(']');
      if (close == absl::string_view::npos) return absl::InvalidArgumentError("lacks a ]");
      absl::Status status = AppendRanges(list->substr(1, close - 1), &ends);
      if (!status.ok()) return status;
      list->remove_prefix(close + 1);
    } else {
      const size_t end = std::min(list->find_first_of("[,"), list->size());
      ends.emplace_back(list->substr(0, end));
      list->remove_prefix(end);
    }
    absl::Status status = Multiply(ends, &names);
    if (!status.ok()) return status;
  }
  if (names.size() == 1 && names[0].empty()) {
    return absl::InvalidArgumentError("has an empty name");
  }
  return names;
}

absl::StatusOr<std::optional<uint32_t>> GpusOf(const Variables& environment) {
  const bool typed = ValueOf(environment, "SLURM_GPUS_ON_NODE").find(':') != std::string::npos;
  if (!typed) {  // a100:4 is left to the lists
    const auto number = NumberOf(environment, "SLURM_GPUS_ON_NODE", 0);
    if (!number.ok()) return number.status();
    if (*number > 0) return *number;
  }
  for (const char* name : {"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"}) {
    const std::string list = ValueOf(environment, name);
    if (!list.empty()) return static_cast<uint32_t>(std::count(list.begin(), list.end(), ',') + 1);
  }
  return std::nullopt;
}

absl::Status ReadStep(const Variables& environment, SlurmStep* step) {
  uint32_t id = 0;
  const std::string text = ValueOf(environment, "SLURM_STEP_ID");
  if (text.empty()) return absl::OkStatus();
  if (!absl::SimpleAtoi(text, &id)) return Odd("SLURM_STEP_ID", text, "a number");
  if (id >= kSpecialStepMin) return absl::OkStatus();
  step->step = absl::StrCat(id);
  const auto tasks_number = NumberOf(environment, "SLURM_STEP_NUM_TASKS", 1);
  if (!tasks_number.ok()) return tasks_number.status();
  const std::string list = ValueOf(environment, "SLURM_STEP_NODELIST");
  absl::StatusOr<std::vector<std::string>> nodes = ExpandNodeList(list);
  if (!nodes.ok()) return Odd("SLURM_STEP_NODELIST", list, "a list of nodes");
  step->nodes = *std::move(nodes);
  const auto count =
      NumberOf(environment, "SLURM_STEP_NUM_NODES", static_cast<uint32_t>(step->nodes.size()));
  if (!count.ok()) return count.status();
  if (*count != step->nodes.size()) {
    return Odd("SLURM_STEP_NUM_NODES", absl::StrCat(*count),
               absl::StrCat("the number of nodes in SLURM_STEP_NODELIST=", list));
  }
  const auto node_id = NumberOf(environment, "SLURM_NODEID", 0);
  if (!node_id.ok()) return node_id.status();
  if (*node_id >= step->nodes.size()) {
    return Odd("SLURM_NODEID", absl::StrCat(*node_id),
               absl::StrCat("below the ", *count, " nodes of the step"));
  }
  step->node_id = *node_id;
  const std::string tasks = ValueOf(environment, "SLURM_STEP_TASKS_PER_NODE");
  const auto most = MostTasksOnNode(tasks.empty() ? "1" : tasks);
  if (!most.ok()) return Odd("SLURM_STEP_TASKS_PER_NODE", tasks, "numbers of tasks");
  step->tasks_on_node = *most;
  return absl::OkStatus();
}

}  // namespace

std::string SlurmStep::JobName() const {
  return step.empty() ? absl::StrCat("slurm-", job) : absl::StrCat("slurm-", job, ".", step);
}

absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list) {
  std::vector<std::string> nodes;
  const std::string whole(list);
  while (true) {
    absl::StatusOr<std::vector<std::string>> names = TakeName(&list);
    if (!names.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(whole, " ", names.status().message()));
    }
    nodes.insert(nodes.end(), names->begin(), names->end());
    if (nodes.size() > kSlurmNodesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(whole, " has more than ", kSlurmNodesMax, " nodes"));
    }
    if (list.empty()) return nodes;
    list.remove_prefix(1);  // the comma
  }
}

absl::StatusOr<uint32_t> MostTasksOnNode(absl::string_view list) {
  uint32_t most = 0;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(part.substr(0, part.find('(')), &number)) {
      return absl::InvalidArgumentError(absl::StrCat(part, " is no number of tasks"));
    }
    most = std::max(most, number);
  }
  return most;
}

absl::StatusOr<std::optional<SlurmStep>> ReadSlurm(const Variables& environment) {
  SlurmStep step;
  step.job = ValueOf(environment, "SLURM_JOB_ID");
  const bool in_step =
      environment.contains("SLURM_STEP_ID") || environment.contains("SLURM_STEP_NODELIST");
  if (step.job.empty() && in_step) return Odd("SLURM_JOB_ID", "", "a number");
  if (step.job.empty()) return std::nullopt;
  uint64_t number = 0;
  if (!absl::SimpleAtoi(step.job, &number)) return Odd("SLURM_JOB_ID", step.job, "a number");
  // One task of an array carries the number of the whole array, which must not be requeued.
  const std::string array = ValueOf(environment, "SLURM_ARRAY_JOB_ID");
  const std::string task = ValueOf(environment, "SLURM_ARRAY_TASK_ID");
  if (absl::SimpleAtoi(array, &number) && absl::SimpleAtoi(task, &number)) {
    step.job = absl::StrCat(array, "_", task);
  }
  const auto restarts = NumberOf(environment, "SLURM_RESTART_COUNT", 0);
  if (!restarts.ok()) return restarts.status();
  step.restarts = *restarts;
  const auto job_nodes = NumberOf(environment, "SLURM_JOB_NUM_NODES", 1);
  if (!job_nodes.ok()) return job_nodes.status();
  step.job_nodes = *job_nodes;
  step.terminal = environment.contains("SLURM_PTY_PORT");
  if (in_step) {
    const auto gpus = GpusOf(environment);
    if (!gpus.ok()) return gpus.status();
    step.gpus = *gpus;
  }
  absl::Status status = ReadStep(environment, &step);
  if (!status.ok()) return status;
  return step;
}

std::string WhyNoRequeue(absl::string_view shown_job) {
  absl::string_view state;
  absl::string_view reason;
  for (const absl::string_view word :
       absl::StrSplit(shown_job, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    absl::string_view value = word;
    if (state.empty() && absl::ConsumePrefix(&value, "JobState=")) state = value;
    if (reason.empty() && absl::ConsumePrefix(&value, "Reason=")) reason = value;
  }
  // While its processes end, a cancelled job is COMPLETING for no reason.
  const bool cancelled = state == "CANCELLED" || (state == "COMPLETING" && reason == "None");
  return cancelled ? "somebody has cancelled it" : "";
}

}  // namespace ddprun::cli
