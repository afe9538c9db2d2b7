// What `ddprun doctor` says: one finding for each thing that was looked at, and the report of them
// all, as lines for people and as JSON for programs. Values and pure functions.
//
// Texts may hold what comes from outside (names of cards, answers of peers): LineOf and
// ReportFromJson make them harmless (net::Shown).
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::doctor {

// In the order of weight. A note is worth knowing and may be right as it is; a problem makes jobs
// fail.
enum class Level { kOk, kNote, kProblem };

struct Finding {
  std::string name;  // what was looked at: "shared memory"
  Level level = Level::kOk;
  std::string seen;     // what was seen
  std::string meaning;  // what it means for a job; may be "" when all is well
  std::string fix;      // what to do; "" when there is nothing to do
};
Finding Ok(std::string name, std::string seen, std::string meaning = "");
Finding Note(std::string name, std::string seen, std::string meaning, std::string fix = "");
Finding Problem(std::string name, std::string seen, std::string meaning, std::string fix);

// What one check has to say: findings, and facts that nodes are compared by.
struct Outcome {
  std::vector<Finding> findings;
  std::map<std::string, std::string> facts;  // "libtorch" → "2.11.0"
};

struct Report {
  std::string version;  // ddprun's
  std::string node;     // host name
  std::vector<Finding> findings;
  std::map<std::string, std::string> facts;
};

// "problem  shared memory: /dev/shm holds 64 MiB; … Fix: …": one line, without its end.
std::string LineOf(const Finding& finding);
// "2 problems, 1 note; 15 checks are well".
std::string SummaryOf(const std::vector<Finding>& findings);
// 0 without problems, else 1.
int ExitCodeOf(const std::vector<Finding>& findings);

nlohmann::ordered_json ToJson(const Report& report);
// A peer's report. INVALID_ARGUMENT when it is none. Texts are made printable and are cut.
absl::StatusOr<Report> ReportFromJson(std::string_view text);

// "512 MiB", "31.2 GiB".
std::string Size(double bytes);

}  // namespace ddprun::doctor
