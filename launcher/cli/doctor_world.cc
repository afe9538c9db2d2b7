#include "launcher/cli/doctor_world.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ddprun::doctor {
namespace {

constexpr size_t kFileBytesMax = 64 << 10;

}  // namespace

std::string World::Variable(const std::string& name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::string ReadWorldFile(const World& world, const std::string& path) {
  const int fd = open((world.root + path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return "";
  std::string text(kFileBytesMax, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(fd, text.data() + size, text.size() - size);
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  close(fd);
  text.resize(size);
  return std::string(absl::StripTrailingAsciiWhitespace(text));
}

std::vector<std::string> ListWorldFolder(const World& world, const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(world.root + path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string FindOnPath(const World& world, const std::string& program) {
  if (program.find('/') != std::string::npos) {
    return access(program.c_str(), X_OK) == 0 ? program : "";
  }
  for (const absl::string_view folder : absl::StrSplit(world.Variable("PATH"), ':')) {
    if (folder.empty()) continue;
    const std::string path = absl::StrCat(folder, "/", program);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

std::optional<long long> LeadingNumber(const std::string& text) {
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace ddprun::doctor
