#include "launcher/logs/merge.h"

#include <queue>
#include <utility>

namespace ddprun::logs {

void Merger::Add(std::unique_ptr<Source> source, std::string prefix) {
  entries_.push_back({std::move(source), std::move(prefix)});
}

void Merger::Run(bool at_end) {
  using Next = std::pair<int64_t, size_t>;  // time, index
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (i == unfinished_) continue;
    if (const Piece* piece = entries_[i].source->Peek(at_end)) next.emplace(piece->time_ns, i);
  }
  // The rest of a line that was begun comes before any other.
  size_t only = unfinished_;
  while (!next.empty() || only != kNone) {
    const size_t index = only != kNone ? only : next.top().second;
    if (only == kNone) next.pop();
    only = kNone;
    Source& source = *entries_[index].source;
    const Next limit = next.empty() ? Next{INT64_MAX, kNone} : next.top();
    // As long as this one is the earliest, without going through the queue.
    const Piece* piece = source.Peek(at_end);
    while (piece != nullptr && (unfinished_ == index || Next{piece->time_ns, index} < limit)) {
      Write(index, *piece);
      source.Pop();
      piece = source.Peek(at_end);
    }
    if (piece != nullptr) next.emplace(piece->time_ns, index);
  }
}

void Merger::Write(size_t index, const Piece& piece) {
  if (unfinished_ != kNone && unfinished_ != index) sink_("\n");
  if (unfinished_ != index) sink_(entries_[index].prefix);
  sink_(piece.bytes);
  unfinished_ = piece.ends_line ? kNone : index;
}

void Merger::Finish() {
  Run(true);
  if (unfinished_ != kNone) sink_("\n");
  unfinished_ = kNone;
  entries_.clear();
}

}  // namespace ddprun::logs
