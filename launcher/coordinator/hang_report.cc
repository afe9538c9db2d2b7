#include "launcher/coordinator/hang_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ddprun::coordinator {
namespace {

using Json = nlohmann::ordered_json;

Json PlaceJson(const std::string& node, const v1::WorkerPlace& place) {
  Json json = {{"rank", place.rank()}, {"node", node}, {"pid", place.pid()}};
  if (place.pid() == 0) {
    json["state"] = "ended or not started";
    return json;
  }
  if (place.speaks()) {
    json["step"] = place.step();
    json["phase"] = place.phase();
    json["collective"] = place.collective();
    json["collective_started"] = place.collective_started();
    json["collective_finished"] = place.collective_finished();
  }
  json["seconds_still"] = place.seconds_still();
  json["state"] = place.state();
  json["stack_source"] = place.stack_source();
  json["stack"] = place.stack();
  return json;
}

std::string PlaceText(const Json& worker) {
  std::string text =
      absl::StrCat("rank ", worker.value("rank", 0), " on node ", worker.value("node", ""),
                   ", pid ", worker.value("pid", 0), ": ", worker.value("state", ""), "\n");
  if (!worker.contains("seconds_still")) return text;
  absl::StrAppend(&text, absl::StrFormat("  still for %.1f s", worker.value("seconds_still", 0.0)));
  if (worker.contains("step")) {
    absl::StrAppend(&text, "; step ", worker.value("step", uint64_t{0}), ", ",
                    worker.value("phase", ""),
                    "; collectives: ", worker.value("collective_started", uint64_t{0}),
                    " started, ", worker.value("collective_finished", uint64_t{0}), " finished");
    const std::string name = worker.value("collective", "");
    if (!name.empty()) absl::StrAppend(&text, ", the last one ", name);
  }
  absl::StrAppend(&text, "\n  stack (", worker.value("stack_source", ""), "):\n");
  const std::string stack = worker.value("stack", "");
  for (size_t begin = 0; begin < stack.size();) {
    const size_t end = std::min(stack.find('\n', begin), stack.size());
    absl::StrAppend(&text, "    ", stack.substr(begin, end - begin), "\n");
    begin = end + 1;
  }
  return text;
}

void AddPlaces(const Generation& g, Json& report) {
  report["silent_nodes"] = g.examination->awaited;
  report["workers"] = Json::array();
  for (const auto& [rank, place] : g.examination->places) {
    Json worker = PlaceJson(g.workers[rank].node, place);
    worker["ready"] = g.workers[rank].ready;
    report["workers"].push_back(std::move(worker));
  }
}

}  // namespace

std::string HangReportName(uint64_t generation) {
  return absl::StrCat("reports/hang-g", generation);
}

Json HangReport(const State& state, const HangVerdict& verdict) {
  Json report = {{"generation", state.generation.number},
                 {"cause", CauseName(Cause::kHang)},
                 {"hang_timeout_seconds", state.spec.supervision().hang_timeout_seconds()},
                 {"rank", verdict.rank},
                 {"reason", verdict.reason},
                 {"seconds", verdict.seconds},
                 {"found_by", state.generation.examination->found_by}};
  AddPlaces(state.generation, report);
  return report;
}

Json InitReport(const State& state, int64_t rank, const std::string& reason) {
  Json report = {{"generation", state.generation.number},
                 {"cause", CauseName(Cause::kInitTimeout)},
                 {"init_timeout_seconds", state.spec.supervision().init_timeout_seconds()},
                 {"rank", rank},
                 {"reason", reason}};
  AddPlaces(state.generation, report);
  return report;
}

std::string HangReportText(const Json& report) {
  const bool init = report.value("cause", "") == CauseName(Cause::kInitTimeout);
  std::string text =
      absl::StrCat("generation ", report.value("generation", uint64_t{0}),
                   init ? " did not start: " : " stood still: ", report.value("reason", ""), "\n");
  for (const auto& node : report["silent_nodes"]) {
    absl::StrAppend(&text, "node ", node.get<std::string>(), " did not answer\n");
  }
  for (const auto& worker : report["workers"]) absl::StrAppend(&text, "\n", PlaceText(worker));
  return text;
}

}  // namespace ddprun::coordinator
