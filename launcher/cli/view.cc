#include "launcher/cli/view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ddprun::cli {

void View::OnEvent(std::string_view json, double now_seconds) {
  const Json event = Json::parse(json, nullptr, false);
  if (!event.is_object()) return;
  const auto named = event.find("event");
  if (named == event.end() || !named->is_string()) return;
  const std::string& name = named->get_ref<const std::string&>();
  if (name == "training_progressed") return OnProgress(event, now_seconds);
  if (name == "node_joined") return OnNode(event, true);
  if (name == "node_lost") OnNode(event, false);
  if (name == "generation_started") {
    waiting_for_nodes_ = false;
    progress_ = Progress{};
    progress_.generation = event.value("generation", uint64_t{0});
    shown_ = false;
    // The first one of a job is what was asked for; nothing to tell on one node.
    if (progress_.generation == 1 && nodes_wanted_ == 1) return;
    return Say(EventLine(event) + RanksOf(event));
  }
  if (name == "restart_scheduled") waiting_for_nodes_ = true;
  if (name == "worker_exited") {
    if (event.value("cause", "") == "stopped" && event.value("signal", "") == "SIGKILL") {
      killed_ranks_.push_back(event.value("rank", int64_t{-1}));
    }
    // One failure ends the generation; those that follow from it would only bury it.
    const uint64_t generation = event.value("generation", uint64_t{0});
    const std::string line = EventLine(event);
    if (line.empty() || failed_in_generation_ == generation) return;
    failed_in_generation_ = generation;
    failed_rank_ = event.value("rank", int64_t{-1});
    failed_line_ = line;
    console_.Status("");
    return Say(absl::StrCat(line, "; stopping the others"));
  }
  if (name == "generation_ended") SayWhoWasKilled(event.value("generation", uint64_t{0}));
  if (name == "generation_ended" && IsKnownAlready(event)) return;
  const std::string line = EventLine(event);
  if (line.empty()) return;
  if (name == "generation_ended" || name == "restart_scheduled") console_.Status("");
  Say(line);
}

// A worker that is killed may have been about to save: people must know which one, and look at the
// grace.
void View::SayWhoWasKilled(uint64_t generation) {
  if (killed_ranks_.empty()) return;
  std::sort(killed_ranks_.begin(), killed_ranks_.end());
  const size_t shown = std::min(killed_ranks_.size(), kKilledRanksShown);
  std::string ranks = absl::StrJoin(killed_ranks_.begin(),
                                    killed_ranks_.begin() + static_cast<ptrdiff_t>(shown), ", ");
  if (shown < killed_ranks_.size()) {
    absl::StrAppend(&ranks, " and ", killed_ranks_.size() - shown, " more");
  }
  killed_ranks_.clear();
  console_.Status("");
  Say(absl::StrCat("generation ", generation,
                   ": still there when the time to leave was over, and killed: rank ", ranks));
}

// Whether the line about the first failed worker has said all that the generation's end says.
bool View::IsKnownAlready(const Json& ended) const {
  return failed_in_generation_ == ended.value("generation", uint64_t{0}) &&
         failed_rank_ == ended.value("rank", int64_t{-1}) &&
         failed_line_.find(ended.value("reason", "")) != std::string::npos;
}

void View::OnProgress(const Json& event, double now_seconds) {
  const auto number = [&event](const char* key) {
    const auto found = event.find(key);
    return found != event.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  const auto count = [&number](const char* key) { return static_cast<uint64_t>(number(key)); };
  const bool first = progress_.step == 0;
  progress_.generation = count("generation");
  progress_.step = count("step");
  if (event.contains("total_steps")) progress_.total_steps = count("total_steps");
  if (event.contains("epoch")) progress_.epoch = static_cast<int64_t>(count("epoch"));
  if (event.contains("epochs")) progress_.epochs = static_cast<int64_t>(count("epochs"));
  const auto loss = event.find("loss");
  progress_.has_loss = loss != event.end() && loss->is_number();
  progress_.loss = number("loss");
  progress_.samples_per_second = number("samples_per_s");
  if (first) {
    rate_since_seconds_ = now_seconds;
    rate_since_step_ = progress_.step;
  } else if (now_seconds > rate_since_seconds_) {
    progress_.steps_per_second = static_cast<double>(progress_.step - rate_since_step_) /
                                 (now_seconds - rate_since_seconds_);
  }
  if (number("time_lost_s") > 0) {
    Say(absl::StrCat("training goes on at step ", progress_.step, "; ",
                     Duration(number("time_lost_s")), " were lost"));
  }
  const std::string line = ProgressLine(progress_);
  if (console_.IsTerminal()) return console_.Status(line);
  if (shown_ && now_seconds - shown_seconds_ < kPlainProgressSeconds) return;
  shown_ = true;
  shown_seconds_ = now_seconds;
  Say(line);
}

// ": a (ranks 0-1), b (ranks 2-4)" for the nodes of a generation; "" for a single one.
std::string View::RanksOf(const Json& started) const {
  const auto list = started.find("nodes");
  if (list == started.end() || !list->is_array() || list->size() < 2) return "";
  if (list->size() > kNodesNamed) return "";
  uint64_t slots = 0;
  std::vector<std::pair<std::string, uint64_t>> nodes;
  for (const Json& entry : *list) {
    const std::string name = entry.is_string() ? entry.get<std::string>() : "?";
    const auto found = nodes_.find(name);
    nodes.emplace_back(name, found == nodes_.end() ? 0 : found->second.slots);
    slots += nodes.back().second;
  }
  // Where each node has a number of workers that was asked for, its slots say nothing.
  const bool known = slots == started.value("world_size", uint64_t{0});
  std::string text;
  uint64_t first = 0;
  for (const auto& [name, count] : nodes) {
    absl::StrAppend(&text, text.empty() ? ": " : ", ", name);
    if (known && count == 1) absl::StrAppend(&text, " (rank ", first, ")");
    if (known && count > 1) absl::StrAppend(&text, " (ranks ", first, "-", first + count - 1, ")");
    first += count;
  }
  return text;
}

void View::OnNode(const Json& event, bool joined) {
  const std::string name = event.value("node", "");
  if (!joined) {
    nodes_.erase(name);
    return;
  }
  nodes_[name] = {event.value("address", ""), event.value("slots", uint64_t{0})};
  const bool again = !seen_nodes_.insert(name).second;
  if (nodes_wanted_ == 1 && waiting_for_nodes_) return;
  const bool spare = nodes_.size() > nodes_wanted_ || event.value("spare", false);
  Say(absl::StrCat(
      "node ", name, " at ", nodes_[name].address, again ? " is back" : " has joined",
      spare ? absl::StrCat(" as a spare (", nodes_.size(), " here, ", nodes_wanted_, " wanted)")
            : absl::StrCat(" (", nodes_.size(), " of ", nodes_wanted_, ")")));
}

void View::SayWhoIsMissing() {
  if (!waiting_for_nodes_ || nodes_.size() >= nodes_wanted_) return;
  const std::string needed =
      nodes_needed_ == nodes_wanted_
          ? ""
          : absl::StrCat(", ", nodes_needed_, nodes_needed_ == 1 ? " is enough" : " are enough");
  std::vector<std::string> missing;
  for (const std::string& name : expected_) {
    if (!nodes_.contains(name)) missing.push_back(name);
  }
  std::string who;
  if (!missing.empty() && missing.size() <= kNodesNamed) {
    who = absl::StrCat(": ", absl::StrJoin(missing, ", "), missing.size() == 1 ? " is" : " are",
                       " missing");
  } else if (!nodes_.empty() && nodes_.size() <= kNodesNamed) {
    who = absl::StrCat("; here: ",
                       absl::StrJoin(nodes_, ", ", [](std::string* out, const auto& node) {
                         absl::StrAppend(out, node.first);
                       }));
  }
  Say(absl::StrCat("waiting for ", nodes_wanted_ - nodes_.size(), " of ", nodes_wanted_, " nodes",
                   needed, who));
}

void View::Finish(const Json& result, const SummaryContext& context) {
  console_.Status("");
  for (const std::string& line : Summary(result, context)) Say(line);
}

}  // namespace ddprun::cli
