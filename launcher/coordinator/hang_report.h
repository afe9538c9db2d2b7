// The report on a hang, or on ranks that were not ready in time: where each one stood. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "launcher/coordinator/hang_verdict.h"
#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

// "reports/hang-g3", to which .json and .txt are added; relative to the run folder.
std::string HangReportName(uint64_t generation);
// REQUIRES: the generation's examination is there.
nlohmann::ordered_json HangReport(const State& state, const HangVerdict& verdict);
// The same of ranks that were not ready in time; `rank`: the one behind, or −1.
nlohmann::ordered_json InitReport(const State& state, int64_t rank, const std::string& reason);
// Either one for people.
std::string HangReportText(const nlohmann::ordered_json& report);

}  // namespace ddprun::coordinator
