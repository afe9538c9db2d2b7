// What is told about a job as JSON: result.json, and the reports of its failures. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

// result.json's content (DESIGN 4.2).
nlohmann::ordered_json MakeResult(const State& state, const Outcome& outcome);

// What an --on-failure command gets: the failure's record and what was decided.
nlohmann::ordered_json MakeFailureReport(const State& state, const RunHook& hook);

}  // namespace ddprun::coordinator
