// LineSplitter: the bytes of one worker → lines, in bounded memory. Pure, one thread at a time.
//
// A line ends at \n, \r or \r\n, or after `line_bytes_max` bytes. Progress bars, which only use \r,
// are lines too; the empty pieces between their \r are left out. Bytes are never changed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

class LineSplitter {
 public:
  explicit LineSplitter(size_t line_bytes_max) : line_bytes_max_(line_bytes_max) {}

  // Calls take(line) for each line that ends in `bytes`; the view is good during the call only.
  template <typename Take>
  void Feed(std::string_view bytes, Take take) {
    while (!bytes.empty()) {
      if (after_return_ && bytes[0] == '\n') bytes.remove_prefix(1);  // the rest of \r\n
      after_return_ = false;
      const size_t room = line_bytes_max_ - partial_.size();
      const size_t end = FindEnd(bytes.substr(0, room));
      if (end == std::string_view::npos && bytes.size() < room) {
        partial_.append(bytes);
        return;
      }
      const bool cut = end == std::string_view::npos;
      const size_t length = cut ? room : end;
      const bool by_return = !cut && bytes[length] == '\r';
      if (length + partial_.size() > 0 || !by_return) {
        partial_.append(bytes.substr(0, length));
        take(std::string_view(partial_));
        partial_.clear();
      }
      after_return_ = by_return;
      bytes.remove_prefix(length + (cut ? 0 : 1));
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
