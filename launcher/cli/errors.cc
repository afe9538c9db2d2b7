#include "launcher/cli/errors.h"

#include <cstdio>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/net/text.h"

namespace ddprun::cli {

std::string ForPeople(const std::string& text) {
  constexpr size_t kLineBytesMax = 4000;
  return absl::StrJoin(absl::StrSplit(text, '\n'), "\n",
                       [](std::string* all, absl::string_view line) {
                         all->append(net::Shown(line, kLineBytesMax));
                       });
}

void PrintError(const std::string& text) {
  std::fprintf(stderr, "ddprun: %s\n", ForPeople(text).c_str());
}

void PrintError(const absl::Status& status) {
  PrintError(std::string(status.message()));
}

}  // namespace ddprun::cli
