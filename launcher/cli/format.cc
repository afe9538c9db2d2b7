#include "launcher/cli/format.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

// A field of an event of whatever type it should have; the default when it is not there or not so.
template <typename T>
T Get(const Json& json, const char* key, T otherwise) {
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->get<T>() : otherwise;
  } else if constexpr (std::is_same_v<T, bool>) {
    return found->is_boolean() ? found->get<T>() : otherwise;
  } else {
    return found->is_number() ? found->get<T>() : otherwise;
  }
}

std::string Text(const Json& json, const char* key) {
  return Get<std::string>(json, key, "");
}

std::string Ending(const Json& event) {
  const std::string signal = Text(event, "signal");
  if (!signal.empty()) return absl::StrCat("was killed by ", signal);
  return absl::StrCat("exited with code ", Get<int64_t>(event, "exit_code", 0));
}

std::string Plural(int64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string GenerationStarted(const Json& event) {
  const auto nodes = event.find("nodes");
  const size_t count = nodes != event.end() && nodes->is_array() ? nodes->size() : 1;
  std::string line = absl::StrCat("generation ", Get<uint64_t>(event, "generation", 0), ": ",
                                  Plural(Get<int64_t>(event, "world_size", 0), "worker"));
  if (count != 1) absl::StrAppend(&line, " on ", count, " nodes");
  const uint64_t step = Get<uint64_t>(event, "resume_step", 0);
  if (step != 0) absl::StrAppend(&line, ", from the checkpoint of step ", step);
  return line;
}

std::string RestartScheduled(const Json& event) {
  const double delay = Get<double>(event, "delay_seconds", 0);
  const uint64_t step = Get<uint64_t>(event, "resume_step", 0);
  const std::string when = absl::StrCat(delay > 0 ? absl::StrCat("in ", Duration(delay)) : "now",
                                        step != 0 ? absl::StrCat(", from step ", step) : "");
  if (Get<bool>(event, "free", false)) {
    return absl::StrCat("restart ", when, ": ", Text(event, "reason"));
  }
  return absl::StrCat("restart ", Get<int64_t>(event, "restarts_used", 0), " of ",
                      Get<int64_t>(event, "restarts_limit", 0), " ", when);
}

std::string WorkerExited(const Json& event) {
  if (Text(event, "cause") != "failed") return "";
  return absl::StrCat("generation ", Get<uint64_t>(event, "generation", 0), ": rank ",
                      Get<int64_t>(event, "rank", -1), " (pid ", Get<int64_t>(event, "pid", 0),
                      ") ", Ending(event));
}

// " (and 41 more like it)"
std::string MoreOfThem(const Json& event) {
  const auto count = Get<int64_t>(event, "count", 1);
  return count > 1 ? absl::StrCat(" (and ", count - 1, " more like it)") : "";
}

// What strangers say is shown with care.
std::string JoinRefused(const Json& event) {
  const std::string node = Text(event, "node");
  const std::string peer = Text(event, "peer");
  // Reasons that begin with the node's name need it no second time.
  const bool named = node.empty() || Text(event, "reason").starts_with("node " + node + " ");
  return absl::StrCat("refused", named ? "" : absl::StrCat(" node ", net::Shown(node)),
                      peer.empty() ? "" : absl::StrCat(" from ", net::Shown(peer)), ": ",
                      net::Shown(Text(event, "reason")), MoreOfThem(event));
}

std::string CheckpointTrouble(const Json& event, const std::string& what) {
  return absl::StrCat("checkpoint of step ", Get<uint64_t>(event, "step", 0), " ", what, ": ",
                      Text(event, "reason"));
}

std::string CheckpointRejected(const Json& event) {
  const uint64_t older = Get<uint64_t>(event, "resume_step", 0);
  return CheckpointTrouble(
      event,
      older == 0
          ? std::string("does not verify, and there is no older one, so that training begins anew")
          : absl::StrCat("does not verify, that of step ", older, " is used"));
}

}  // namespace

std::string SizeText(uint64_t bytes) {
  const auto size = static_cast<double>(bytes);
  return size >= 1e9   ? absl::StrFormat("%.1f GB", size / 1e9)
         : size >= 1e6 ? absl::StrFormat("%.1f MB", size / 1e6)
                       : absl::StrFormat("%.0f kB", size / 1e3);
}

std::string Duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  if (seconds < 9.95) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return absl::StrCat(whole, " s");
  if (whole < 3600) return absl::StrCat(whole / 60, " min ", whole % 60, " s");
  if (whole < 86400) return absl::StrCat(whole / 3600, " h ", whole % 3600 / 60, " min");
  return absl::StrCat(whole / 86400, " d ", whole % 86400 / 3600, " h");
}

std::string ProgressLine(const Progress& p) {
  std::string line;
  if (p.generation > 1) absl::StrAppend(&line, "generation ", p.generation, ", ");
  if (p.epoch > 0) {
    absl::StrAppend(&line, "epoch ", p.epoch);
    if (p.epochs > 0) absl::StrAppend(&line, "/", p.epochs);
    line += ", ";
  }
  absl::StrAppend(&line, "step ", p.step);
  if (p.total_steps > 0) absl::StrAppend(&line, "/", p.total_steps);
  if (p.has_loss) absl::StrAppend(&line, absl::StrFormat(", loss %.4g", p.loss));
  if (p.samples_per_second > 0) {
    const int digits = p.samples_per_second < 100 ? 1 : 0;
    absl::StrAppend(&line, absl::StrFormat(", %.*f samples/s", digits, p.samples_per_second));
  }
  if (p.total_steps > p.step && p.steps_per_second > 0) {
    const auto left = static_cast<double>(p.total_steps - p.step);
    absl::StrAppend(&line, ", ", Duration(left / p.steps_per_second), " left");
  }
  return line;
}

std::string EventLine(const Json& event) {
  const std::string name = Text(event, "event");
  if (name == "generation_started") return GenerationStarted(event);
  if (name == "restart_scheduled") return RestartScheduled(event);
  if (name == "worker_exited") return WorkerExited(event);
  if (name == "job_paused") {
    return "paused: the workers stand still (fg, or SIGCONT to ddprun, lets them go on)";
  }
  if (name == "job_continued") {
    return absl::StrCat("continued after ", Duration(Get<double>(event, "seconds", 0)));
  }
  if (name == "hang_found") {
    return absl::StrCat("generation ", Get<uint64_t>(event, "generation", 0),
                        " stands still: ", Text(event, "reason"),
                        "; stopping it; where each rank stands: ", Text(event, "report"),
                        " in the run folder");
  }
  if (name == "init_timed_out") {
    return absl::StrCat(
        "generation ", Get<uint64_t>(event, "generation", 0), ": ", Text(event, "reason"),
        "; stopping it; where each rank stands: ", Text(event, "report"), " in the run folder");
  }
  if (name == "hang_over") {
    return absl::StrCat("rank ", Get<int64_t>(event, "rank", -1), " stood still for ",
                        Duration(Get<double>(event, "seconds", 0)), " and has moved again");
  }
  if (name == "node_lost") {
    const std::string reason = Text(event, "reason");
    return Get<bool>(event, "planned", false)
               ? absl::StrCat("node ", Text(event, "node"),
                              " has left: ", absl::StripPrefix(reason, "it left: "))
               : absl::StrCat("node ", Text(event, "node"), " was lost: ", reason);
  }
  if (name == "join_refused") return JoinRefused(event);
  if (name == "message_rejected") {
    return absl::StrCat("node ", net::Shown(Text(event, "node")),
                        " said what it may not: ", net::Shown(Text(event, "reason")),
                        MoreOfThem(event));
  }
  if (name == "node_left_out") {
    return absl::StrCat("node ", Text(event, "node"), " is left out for ",
                        Duration(Get<double>(event, "seconds", 0)), ": ", Text(event, "reason"));
  }
  if (name == "node_let_in") {
    return absl::StrCat("node ", Text(event, "node"), " may take part again");
  }
  if (name == "node_kept") {
    return absl::StrCat("node ", Text(event, "node"), " failed ", Get<int>(event, "strikes", 0),
                        " times, but goes on: ", Text(event, "reason"));
  }
  if (name == "checkpoint_failed") return CheckpointTrouble(event, "failed, training goes on");
  if (name == "checkpoint_rejected") return CheckpointRejected(event);
  if (name == "worker_unkillable") {
    const auto pids = event.find("pids");
    return absl::StrCat("node ", Text(event, "node"), ": still there after SIGKILL: pid ",
                        pids == event.end() ? "?" : pids->dump(),
                        " (stuck in the kernel, as with a dead network disk or driver)");
  }
  if (name == "generation_ended") {
    const std::string reason = Text(event, "reason");
    if (reason.empty() || reason == "finished") return "";
    const int64_t rank = Get<int64_t>(event, "rank", -1);
    return absl::StrCat("generation ", Get<uint64_t>(event, "generation", 0),
                        " ended: ", rank >= 0 ? absl::StrCat("rank ", rank, " ") : "", reason);
  }
  return "";
}

namespace {

// "test_accuracy 0.8791, test_loss 0.34"
std::string Metrics(const Json& result) {
  std::string text;
  const auto metrics = result.find("metrics");
  if (metrics == result.end() || !metrics->is_object()) return text;
  for (const auto& [name, value] : metrics->items()) {
    if (!value.is_number()) continue;
    absl::StrAppend(&text, ", ", name, absl::StrFormat(" %.4g", value.get<double>()));
  }
  return text;
}

std::string Headline(const Json& result, const SummaryContext& context) {
  const std::string status = Text(result, "status");
  std::string line = status;
  if (status == "stopped") {
    const std::string reason = Text(result, "reason");
    if (!reason.empty()) line = reason;
  } else if (status == "failed") {
    line = absl::StrCat("failed with exit code ", Get<int64_t>(result, "exit_code", 1));
    const std::string kind = Text(result, "failure_kind");
    if (!kind.empty()) absl::StrAppend(&line, " (", kind, ")");
  }
  absl::StrAppend(&line, " after ", Duration(context.seconds));
  const uint64_t step = Get<uint64_t>(result, "final_step", 0);
  if (context.trainer || step != 0)
    absl::StrAppend(&line, ", ", Plural(static_cast<int64_t>(step), "step"));
  return line + Metrics(result);
}

constexpr size_t kTracebackLinesMax = 30;  // as many as of a log

// The worker's own report, where its log does not end with the same; its core and what it left.
void AddEvidence(const Json& failure, std::vector<std::string>* lines) {
  const auto error = failure.find("error");
  const std::string traceback =
      error != failure.end() && error->is_object() ? Text(*error, "traceback") : "";
  std::vector<std::string> parts = absl::StrSplit(traceback, '\n', absl::SkipWhitespace());
  const std::string last = parts.empty() ? "" : parts.back();
  bool in_log = last.empty();
  const auto tail = failure.find("log_tail");
  if (tail != failure.end() && tail->is_array()) {
    for (const auto& line : *tail) {
      in_log = in_log || (line.is_string() && absl::StrContains(line.get<std::string>(), last));
    }
  }
  if (!in_log) {
    if (parts.size() > kTracebackLinesMax)
      parts.erase(parts.begin(), parts.end() - kTracebackLinesMax);
    lines->push_back("  its error report:");
    for (const std::string& part : parts) lines->push_back(absl::StrCat("    | ", part));
  }
  const std::string core = Text(failure, "core_dump");
  if (!core.empty()) lines->push_back(absl::StrCat("  ", core));
  const auto artifacts = failure.find("artifacts");
  if (artifacts != failure.end() && artifacts->is_array() && !artifacts->empty() &&
      artifacts->front().is_string()) {
    lines->push_back(absl::StrCat(
        "  flight recorder: ", artifacts->front().get<std::string>(),
        artifacts->size() > 1 ? absl::StrCat(" and ", artifacts->size() - 1, " more") : ""));
  }
}

// "reports/hang-g1.json" → "reports/hang-g1.txt", which is the same for people.
std::string ForPeople(absl::string_view report) {
  absl::ConsumeSuffix(&report, ".json");
  return absl::StrCat(report, ".txt");
}

// Where each rank stood, of a hang or an init timeout.
void AddReport(const Json& failure, const SummaryContext& context,
               std::vector<std::string>* lines) {
  const std::string report = Text(failure, "report");
  if (report.empty()) return;
  lines->push_back(
      absl::StrCat("  where each rank stood: ", context.run_dir, "/", ForPeople(report)));
}

void AddFailure(const Json& failure, const SummaryContext& context,
                std::vector<std::string>* lines) {
  const int64_t rank = Get<int64_t>(failure, "rank", -1);
  const std::string node = Text(failure, "node");
  const std::string reason = Text(failure, "reason");
  const int64_t pid = Get<int64_t>(failure, "pid", 0);
  const uint64_t generation = Get<uint64_t>(failure, "generation", 0);
  if (rank < 0) {
    lines->push_back(absl::StrCat("  cause: ", reason));
    AddReport(failure, context, lines);
    lines->push_back(absl::StrCat("  logs: ", context.run_dir, "/logs/g", generation, "/"));
    return;
  }
  // One that ddprun has ended (a hang) has no end of its own.
  const bool ended =
      pid != 0 && (!Text(failure, "signal").empty() || Get<int64_t>(failure, "exit_code", 0) != 0);
  std::string cause = absl::StrCat("  cause: rank ", rank, node.empty() ? "" : " on node ", node,
                                   ended ? absl::StrCat(", pid ", pid, ", ", Ending(failure)) : "");
  // The reason often begins with the same words.
  absl::string_view rest = reason;
  if (ended && absl::ConsumePrefix(&rest, Ending(failure))) absl::ConsumePrefix(&rest, ": ");
  if (!rest.empty()) absl::StrAppend(&cause, ": ", rest);
  lines->push_back(cause);
  AddReport(failure, context, lines);
  AddEvidence(failure, lines);
  const std::string log =
      absl::StrCat(context.run_dir, "/logs/g", generation, "/rank", rank, ".log");
  const auto tail = failure.find("log_tail");
  if (tail == failure.end() || !tail->is_array() || tail->empty()) {
    lines->push_back(absl::StrCat("  it wrote nothing to its log ", log));
    return;
  }
  lines->push_back(absl::StrCat("  the end of its log ", log, ":"));
  for (const auto& line : *tail) {
    if (line.is_string()) lines->push_back(absl::StrCat("    | ", line.get<std::string>()));
  }
}

}  // namespace

std::vector<std::string> Summary(const Json& result, const SummaryContext& context) {
  std::vector<std::string> lines = {Headline(result, context)};
  const std::string status = Text(result, "status");
  const int64_t restarts = Get<int64_t>(result, "restarts", 0);
  const double lost = Get<double>(result, "time_lost_s", 0);
  if (restarts > 0 || lost > 0) {
    lines.push_back(absl::StrCat("  ", Plural(restarts, "restart"), ", ", Duration(lost),
                                 " of training lost to failures"));
  }
  if (status == "failed") {
    const auto failure = result.find("first_failure");
    if (failure != result.end() && failure->is_object()) AddFailure(*failure, context, &lines);
    const std::string reason = Text(result, "reason");
    if (!reason.empty()) lines.push_back(absl::StrCat("  no restart: ", reason));
  }
  const std::string digest = Text(result, "weights_digest");
  if (!digest.empty()) lines.push_back(absl::StrCat("  weights digest ", digest));
  if (status == "succeeded") {
    lines.push_back(absl::StrCat("  results: ", context.run_dir));
  } else {
    lines.push_back(absl::StrCat("  to go on: ", context.resume_command));
  }
  return lines;
}

}  // namespace ddprun::cli
