// View: turns the job's events into what a person sees. Lines of ddprun's own begin with "ddprun:
// ".
//
// Threads: one thread at a time. `now_seconds` of every call is of one monotonic clock.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/cli/format.h"
#include "launcher/console/console.h"

namespace ddprun::cli {

class View {
 public:
  // Without a terminal, progress is shown at most so often.
  static constexpr double kPlainProgressSeconds = 10;
  static constexpr double kFlushSeconds = 1;
  // Of the ranks that had to be killed, so many are named.
  static constexpr size_t kKilledRanksShown = 16;
  static constexpr size_t kNodesNamed = 32;

  // `nodes_wanted` > 1 shows who comes; `expected`: their names, where they are known. `console`
  // outlives the view.
  View(Console* console, uint32_t nodes_needed, uint32_t nodes_wanted,
       std::vector<std::string> expected = {})
      : console_(*console),
        nodes_needed_(nodes_needed),
        nodes_wanted_(nodes_wanted),
        expected_(std::move(expected)) {}

  void Say(const std::string& line) { console_.Say("ddprun: " + line); }
  // Waits until all that was said so far is written, for a bounded time.
  void Flush() { console_.Flush(kFlushSeconds); }
  // One line of events.jsonl.
  void OnEvent(std::string_view json, double now_seconds);
  // Says who is still missing, when nodes are awaited. To be called now and then.
  void SayWhoIsMissing();
  // The status line goes, the summary comes.
  void Finish(const Json& result, const SummaryContext& context);

 private:
  void OnProgress(const Json& event, double now_seconds);
  bool IsKnownAlready(const Json& ended) const;
  void OnNode(const Json& event, bool joined);
  void SayWhoWasKilled(uint64_t generation);

  Console& console_;
  const uint32_t nodes_needed_;
  const uint32_t nodes_wanted_;
  const std::vector<std::string> expected_;
  struct Node {
    std::string address;
    uint64_t slots = 0;
  };
  std::string RanksOf(const Json& started) const;

  std::map<std::string, Node> nodes_;  // by name: those that are here
  std::set<std::string> seen_nodes_;   // that have been here
  bool waiting_for_nodes_ = true;
  // The worker whose failure was told at once.
  uint64_t failed_in_generation_ = 0;
  int64_t failed_rank_ = -1;
  std::string failed_line_;
  std::vector<int64_t> killed_ranks_;  // of the running generation, by ddprun
  Progress progress_;
  double rate_since_seconds_ = 0;
  uint64_t rate_since_step_ = 0;
  double shown_seconds_ = 0;
  bool shown_ = false;
};

}  // namespace ddprun::cli
