// Merger: the logs of many ranks → one stream, ordered by time. Pure but for its sources and sink.
//
// Threads: one. Invariants:
//  1. Bytes are never changed: each line comes whole, behind its prefix, as it is.
//  2. The lines of one source stay in their order; between sources the time decides, then the order
//  in which they were added.
//  3. Where a line is left unfinished for another source's, a line feed is put between them, and
//  what follows of it gets a prefix again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::logs {

// A line, or a part of one that is too long to be held.
struct Piece {
  int64_t time_ns = 0;  // never less than that of the piece before
  std::string_view bytes;
  bool ends_line = true;
};

class Source {
 public:
  virtual ~Source() = default;
  // The next piece, good until Pop; nullptr: nothing is complete now. `at_end`: what is there is
  // all that will come, so an unfinished line counts as complete.
  virtual const Piece* Peek(bool at_end) = 0;
  virtual void Pop() = 0;
};

class Merger {
 public:
  using Sink = std::function<void(std::string_view)>;
  explicit Merger(Sink sink) : sink_(std::move(sink)) {}

  void Add(std::unique_ptr<Source> source, std::string prefix);
  // Passes on all pieces that are there now.
  void Run(bool at_end);
  // Run(true), ends an unfinished line, and forgets the sources.
  void Finish();
  size_t sources() const { return entries_.size(); }

 private:
  struct Entry {
    std::unique_ptr<Source> source;
    std::string prefix;
  };
  static constexpr size_t kNone = SIZE_MAX;

  void Write(size_t index, const Piece& piece);

  Sink sink_;
  std::vector<Entry> entries_;
  size_t unfinished_ = kNone;  // whose line the output stands in
};

}  // namespace ddprun::logs
