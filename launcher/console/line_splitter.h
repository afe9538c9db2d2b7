// LineSplitter: the bytes of one worker → lines, in bounded memory. Pure, one thread at a time.
//
// A line ends at \n, \r or \r\n, or after `line_bytes_max` bytes. Progress bars, which only use \r,
// are lines too, and are told apart; the empty pieces between their \r are left out. Bytes are
// never changed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun {

class LineSplitter {
 public:
  enum class End {
    kLineFeed,  // a line; also one that was cut
    kReturn,    // an update, as of a progress bar: the next one takes its place
    // \n that follows upon \r in another piece: what was told as an update was a line. Comes with
    // no bytes.
    kLateLineFeed,
  };

  explicit LineSplitter(size_t line_bytes_max) : line_bytes_max_(line_bytes_max) {}

  // Calls take(line, end) for each line that ends in `bytes`; the view is good during the call
  // only.
  template <typename Take>
  void Feed(std::string_view bytes, Take take) {
    while (!bytes.empty()) {
      if (std::exchange(after_return_, false) && bytes[0] == '\n') {
        take(std::string_view(), End::kLateLineFeed);
        bytes.remove_prefix(1);
        continue;
      }
      const size_t room = line_bytes_max_ - partial_.size();
      const size_t end = FindEnd(bytes.substr(0, room));
      if (end == std::string_view::npos && bytes.size() < room) {
        partial_.append(bytes);
        return;
      }
      const bool cut = end == std::string_view::npos;
      const size_t length = cut ? room : end;
      const bool return_found = !cut && bytes[length] == '\r';
      const bool both = return_found && bytes.substr(length + 1).starts_with('\n');
      const bool update = return_found && !both;
      if (length + partial_.size() > 0 || !update) {
        partial_.append(bytes.substr(0, length));
        take(std::string_view(partial_), update ? End::kReturn : End::kLineFeed);
        partial_.clear();
        after_return_ = update;
      }
      bytes.remove_prefix(length + (cut ? 0 : both ? 2 : 1));
    }
  }

  // What waits for its end.
  std::string TakePartial() {
    after_return_ = false;
    std::string rest;
    rest.swap(partial_);
    return rest;
  }

 private:
  static size_t FindEnd(std::string_view bytes);

  size_t line_bytes_max_;
  std::string partial_;
  bool after_return_ = false;
};

}  // namespace ddprun
