#include "launcher/cli/doctor_finding.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launcher/net/text.h"

namespace ddprun::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFindingsMax = 256;  // of a peer's report; ours has about 30
constexpr size_t kFactsMax = 64;

const char* NameOf(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kNote:
      return "note";
    case Level::kProblem:
      return "problem";
  }
  return "problem";
}

std::string TextIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? net::Shown(found->get<std::string>(), 600)
                                                   : std::string();
}

std::string Counted(size_t number, const char* one) {
  return absl::StrCat(number, " ", one, number == 1 ? "" : "s");
}

}  // namespace

Finding Ok(std::string name, std::string seen, std::string meaning) {
  return {std::move(name), Level::kOk, std::move(seen), std::move(meaning), ""};
}

Finding Note(std::string name, std::string seen, std::string meaning, std::string fix) {
  return {std::move(name), Level::kNote, std::move(seen), std::move(meaning), std::move(fix)};
}

Finding Problem(std::string name, std::string seen, std::string meaning, std::string fix) {
  return {std::move(name), Level::kProblem, std::move(seen), std::move(meaning), std::move(fix)};
}

std::string LineOf(const Finding& finding) {
  std::string line =
      absl::StrFormat("%-8s %s: %s", NameOf(finding.level), finding.name, finding.seen);
  if (!finding.meaning.empty()) absl::StrAppend(&line, "; ", finding.meaning);
  if (!finding.fix.empty()) absl::StrAppend(&line, ". Fix: ", finding.fix);
  return net::Shown(line, 1200);
}

std::string SummaryOf(const std::vector<Finding>& findings) {
  std::array<size_t, 3> count = {};
  for (const Finding& finding : findings) ++count[static_cast<size_t>(finding.level)];
  std::vector<std::string> parts;
  if (count[2] > 0) parts.push_back(Counted(count[2], "problem"));
  if (count[1] > 0) parts.push_back(Counted(count[1], "note"));
  parts.push_back(absl::StrCat(count[0], " ok"));
  return absl::StrJoin(parts, ", ");
}

int ExitCodeOf(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.level == Level::kProblem; })
             ? 1
             : 0;
}

Json ToJson(const Report& report) {
  Json checks = Json::array();
  for (const Finding& finding : report.findings) {
    checks.push_back({{"name", finding.name},
                      {"level", NameOf(finding.level)},
                      {"seen", finding.seen},
                      {"meaning", finding.meaning},
                      {"fix", finding.fix}});
  }
  Json facts = Json::object();
  for (const auto& [key, value] : report.facts) facts[key] = value;
  return {{"version", report.version},
          {"node", report.node},
          {"exit_code", ExitCodeOf(report.findings)},
          {"facts", std::move(facts)},
          {"checks", std::move(checks)}};
}

absl::StatusOr<Report> ReportFromJson(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  absl::Status bad = absl::InvalidArgumentError("is no report of ddprun doctor");
  if (!json.is_object() || TextIn(json, "version").empty()) return bad;
  Report report;
  report.version = TextIn(json, "version");
  report.node = TextIn(json, "node");
  const Json facts = json.value("facts", Json::object());
  const Json checks = json.value("checks", Json::array());
  if (!facts.is_object() || !checks.is_array()) return bad;
  if (facts.size() > kFactsMax || checks.size() > kFindingsMax) return bad;
  for (const auto& [key, value] : facts.items()) {
    if (value.is_string()) report.facts[net::Shown(key)] = net::Shown(value.get<std::string>());
  }
  for (const Json& check : checks) {
    if (!check.is_object()) return bad;
    const std::string level = TextIn(check, "level");
    report.findings.push_back({TextIn(check, "name"),
                               level == "ok"     ? Level::kOk
                               : level == "note" ? Level::kNote
                                                 : Level::kProblem,
                               TextIn(check, "seen"), TextIn(check, "meaning"),
                               TextIn(check, "fix")});
  }
  return report;
}

std::string Size(double bytes) {
  constexpr double kMiB = 1 << 20;
  constexpr double kGiB = 1 << 30;
  constexpr double kTiB = kGiB * 1024;
  if (bytes >= kTiB) return absl::StrFormat("%.1f TiB", bytes / kTiB);
  if (bytes >= kGiB) return absl::StrFormat("%.1f GiB", bytes / kGiB);
  if (bytes >= kMiB) return absl::StrFormat("%.0f MiB", bytes / kMiB);
  return absl::StrFormat("%.0f KiB", bytes / 1024);
}

}  // namespace ddprun::doctor
