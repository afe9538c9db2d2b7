#include "launcher/coordinator/accounting.h"

#include <algorithm>

namespace ddprun::coordinator {
namespace {

double Seconds(int64_t ns) {
  return static_cast<double>(ns) / kSecondNs;
}

// Steps of our trainer are known to come; a program's are known once it has reported one.
bool ReportsSteps(const State& state) {
  return state.accounts.steps_reported || !state.spec.train_config_json().empty();
}

// `had_started` decides only of one that failed.
bool Worked(const State& state, bool had_started) {
  const Generation& g = state.generation;
  if (!g.failed) return g.first_step != 0 || g.all_started_ns != 0;
  return ReportsSteps(state) ? g.first_step != 0 : g.all_started_ns != 0 && had_started;
}

nlohmann::ordered_json Close(State& state, int64_t until_ns, double more_seconds) {
  Accounts& a = state.accounts;
  if (a.lost_since_ns == 0) return nlohmann::ordered_json::object();
  const double lost = std::max(0.0, Seconds(until_ns - a.lost_since_ns)) + more_seconds;
  a.lost_since_ns = 0;
  a.accounted_until_ns = std::max(a.accounted_until_ns, until_ns);
  a.lost_seconds += lost;
  a.lost_by_cause[CauseName(a.lost_cause)] += lost;
  for (FailureRecord& failure : state.failures) {
    if (failure.generation == a.lost_generation) failure.time_lost_seconds += lost;
  }
  return {{"time_lost_s", lost}, {"lost_to", CauseName(a.lost_cause)}};
}

}  // namespace

nlohmann::ordered_json AccountWorkBegins(State& state) {
  const Generation& g = state.generation;
  double again = 0;
  if (g.first_step != 0 && state.trained_to_step > g.first_step) {
    again = static_cast<double>(state.trained_to_step - g.first_step) * state.seconds_per_step;
    state.accounts.productive_ns -= static_cast<int64_t>(again * kSecondNs);
  }
  return Close(state, state.now_ns, again);
}

nlohmann::ordered_json AccountAllStarted(State& state) {
  if (ReportsSteps(state)) return nlohmann::ordered_json::object();
  return Close(state, state.now_ns, 0);
}

void AccountGeneration(State& state, bool had_started) {
  Generation& g = state.generation;
  const uint64_t reported = g.step;  // at last_step_ns
  for (const Worker& worker : g.workers) {
    if (worker.exited && g.first_step != 0) {
      g.step = std::max<uint64_t>(g.step, worker.exited->step());
    }
  }
  if (!Worked(state, had_started)) return;
  if (g.first_step == 0) {
    state.accounts.productive_ns += std::max<int64_t>(0, g.ended_ns - g.all_started_ns);
    return;
  }
  state.trained_to_step = g.step;
  if (reported > g.first_step && g.last_step_ns > g.first_step_ns) {
    state.seconds_per_step =
        Seconds(g.last_step_ns - g.first_step_ns) / static_cast<double>(reported - g.first_step);
  }
  // Steps are reported once a second, so a part of them is heard of by the end only. Where that is
  // all there is, nothing tells their time from that of the end.
  if (!g.failed && g.step > reported) {
    const int64_t rest_ns = std::max<int64_t>(0, g.ended_ns - g.last_step_ns);
    const double steps = static_cast<double>(g.step - reported);
    const auto known_ns = static_cast<int64_t>(steps * state.seconds_per_step * kSecondNs);
    state.accounts.productive_ns += known_ns > 0 ? std::min(known_ns, rest_ns) : rest_ns;
  }
  // The first step took about as long as the others.
  state.accounts.productive_ns +=
      g.last_step_ns - g.first_step_ns + static_cast<int64_t>(state.seconds_per_step * kSecondNs);
}

nlohmann::ordered_json AccountFailure(State& state, Cause cause, bool had_started) {
  const Generation& g = state.generation;
  const bool worked = Worked(state, had_started);
  nlohmann::ordered_json fields = Close(state, g.started_ns, 0);
  int64_t since_ns = g.started_ns;
  if (worked) since_ns = g.first_step != 0 ? g.last_step_ns : g.ended_ns;
  Accounts& a = state.accounts;
  a.lost_since_ns = std::max(since_ns, a.accounted_until_ns);
  a.lost_generation = g.number;
  a.lost_cause = cause;
  return fields;
}

nlohmann::ordered_json AccountEnd(State& state) {
  return Close(state, state.now_ns, 0);
}

double Goodput(const State& state) {
  const int64_t all_ns = state.now_ns - state.started_ns;
  if (all_ns <= 0) return 0;
  return std::clamp(Seconds(state.accounts.productive_ns) / Seconds(all_ns), 0.0, 1.0);
}

}  // namespace ddprun::coordinator
