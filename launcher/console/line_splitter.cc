#include "launcher/console/line_splitter.h"

#include <algorithm>

namespace ddprun {

size_t LineSplitter::FindEnd(std::string_view bytes) {
  // Two quick searches beat one for "either of two".
  const size_t feed = bytes.find('\n');
  const size_t carriage = bytes.substr(0, feed).find('\r');
  return std::min(feed, carriage);
}

}  // namespace ddprun
