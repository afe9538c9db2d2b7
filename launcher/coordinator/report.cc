#include "launcher/coordinator/report.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "launcher/coordinator/accounting.h"
#include "launcher/coordinator/restart_policy.h"
#include "launcher/coordinator/root_cause.h"

namespace ddprun::coordinator {
namespace {

using Json = nlohmann::ordered_json;

Json FailureJson(const FailureRecord& failure) {
  Json json = {{"generation", failure.generation},
               {"rank", failure.rank},
               {"node", failure.node},
               {"pid", failure.pid},
               {"cause", CauseName(failure.cause)}};
  if (failure.signal != 0) {
    json["signal"] = SignalName(failure.signal);
  } else {
    json["exit_code"] = failure.exit_code;
  }
  json["t"] = failure.t;
  json["reason"] = failure.reason;
  json["time_lost_s"] = failure.time_lost_seconds;
  if (!failure.error_message.empty() || !failure.error_traceback.empty()) {
    json["error"] = {{"message", failure.error_message}, {"traceback", failure.error_traceback}};
  }
  if (!failure.core_dump.empty()) json["core_dump"] = failure.core_dump;
  if (!failure.artifacts.empty()) json["artifacts"] = failure.artifacts;
  if (!failure.report.empty()) json["report"] = failure.report;
  json["secondary"] = failure.secondary;
  json["groups"] = Json::array();
  for (const FailureGroup& group : failure.groups) {
    json["groups"].push_back({{"ranks", group.ranks}, {"text", group.text}});
  }
  json["log_tail"] = failure.log_tail;
  return json;
}

}  // namespace

Json MakeResult(const State& state, const Outcome& outcome) {
  Json metrics = Json::object();
  uint64_t final_step = std::max(state.committed_step, state.best_step);
  final_step = std::max(final_step, state.generation.step);
  std::string digest;
  for (const auto& [key, value] : state.result_values) {
    double number = 0;
    if (key == "FINAL_STEP") {
      if (!absl::SimpleAtoi(value, &final_step)) continue;
    } else if (key == "WEIGHTS_DIGEST") {
      digest = value;
    } else if (key.rfind("METRIC.", 0) == 0 && absl::SimpleAtod(value, &number)) {
      metrics[key.substr(7)] = number;
    }
  }
  Json failures = Json::array();
  for (const FailureRecord& failure : state.failures) failures.push_back(FailureJson(failure));
  Json result = {{"status", outcome.status}, {"exit_code", outcome.exit_code}};
  if (outcome.worker_exit_code != 0) result["worker_exit_code"] = outcome.worker_exit_code;
  if (!outcome.failure_kind.empty()) result["failure_kind"] = outcome.failure_kind;
  if (!outcome.reason.empty()) result["reason"] = outcome.reason;
  result["job_id"] = state.spec.job_id();
  result["generations"] = state.generation.number;
  result["restarts"] = state.restarts_before + state.history.restarts_charged;
  result["final_step"] = final_step;
  result["metrics"] = std::move(metrics);
  if (!digest.empty()) result["weights_digest"] = digest;
  if (outcome.status == "failed" && !failures.empty()) result["first_failure"] = failures.back();
  result["failures"] = std::move(failures);
  result["time_lost_s"] = state.accounts.lost_seconds;
  result["time_lost_by_cause"] = state.accounts.lost_by_cause;
  result["goodput"] = Goodput(state);
  return result;
}

Json MakeFailureReport(const State& state, const RunHook& hook) {
  Json report = {{"event", "failure"},
                 {"job_id", state.spec.job_id()},
                 {"run_dir", state.spec.run_dir()},
                 {"generation", hook.failure.generation},
                 {"restarts", state.restarts_before + state.history.restarts_charged},
                 {"restarts_limit", state.spec.restart().max_restarts()},
                 {"resume_step", state.committed_step},
                 {"restarting", hook.decision.status.empty()},
                 {"decision", hook.decision.reason}};
  if (!hook.decision.status.empty()) report["exit_code"] = hook.decision.exit_code;
  report["failure"] = FailureJson(hook.failure);
  return report;
}

}  // namespace ddprun::coordinator
