#include "launcher/logs/rank_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <tuple>

#include "launcher/logs/times_reader.h"

namespace ddprun::logs {
namespace {

constexpr size_t kBlockBytes = 65536;

template <typename Number>
std::optional<Number> ScanNumber(std::string_view text) {
  Number number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || stop != text.data() + text.size()) {
    return std::nullopt;
  }
  return number;
}

std::vector<std::string> ListNames(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) names.emplace_back(entry->d_name);
  closedir(dir);
  return names;
}

int OpenForReading(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

// All files of the rank, from the newest to the oldest.
std::vector<uint64_t> NewestFirst(const RankFiles& files) {
  std::vector<uint64_t> numbers = {0};
  numbers.insert(numbers.end(), files.numbers.rbegin(), files.numbers.rend());
  return numbers;
}

// Looks backwards from the end of the file for the end of line number *lines_left (counted down);
// the offset behind it.
std::optional<uint64_t> FindBackwards(const std::string& path, bool newest, uint64_t* lines_left) {
  const int fd = OpenForReading(path);
  if (fd < 0) return std::nullopt;
  const off_t size = lseek(fd, 0, SEEK_END);
  std::string block;
  std::optional<uint64_t> found;
  for (off_t end = size; end > 0 && !found;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(kBlockBytes));
    block.resize(static_cast<size_t>(end - begin));
    if (pread(fd, block.data(), block.size(), begin) != static_cast<ssize_t>(block.size())) break;
    for (size_t i = block.size(); i-- > 0 && !found;) {
      if (block[i] != '\n') continue;
      const off_t at = begin + static_cast<off_t>(i);
      if (newest && at == size - 1) continue;  // ends the last line
      if (--*lines_left == 0) found = static_cast<uint64_t>(at) + 1;
    }
    end = begin;
  }
  close(fd);
  return found;
}

// The first beginning of a line at or behind the offset.
uint64_t LineBeginning(const std::string& path, uint64_t offset) {
  if (offset == 0) return 0;
  const int fd = OpenForReading(path);
  if (fd < 0) return offset;
  std::string block(kBlockBytes, '\0');
  uint64_t at = offset - 1;
  for (;;) {
    const ssize_t size = pread(fd, block.data(), block.size(), static_cast<off_t>(at));
    if (size <= 0) break;
    const size_t end = std::string_view(block).substr(0, static_cast<size_t>(size)).find('\n');
    at += end == std::string_view::npos ? static_cast<uint64_t>(size) : end + 1;
    if (end != std::string_view::npos) break;
  }
  close(fd);
  return at;
}

}  // namespace

std::vector<uint64_t> ListGenerations(const std::string& run_dir) {
  std::vector<uint64_t> generations;
  for (const std::string& name : ListNames(run_dir + "/logs")) {
    if (name[0] != 'g') continue;
    if (const auto number = ScanNumber<uint64_t>(std::string_view(name).substr(1))) {
      generations.push_back(*number);
    }
  }
  std::sort(generations.begin(), generations.end());
  return generations;
}

std::string GenerationFolder(const std::string& run_dir, uint64_t generation) {
  return run_dir + "/logs/g" + std::to_string(generation);
}

std::map<uint32_t, RankFiles> ListRanks(const std::string& folder) {
  std::map<uint32_t, RankFiles> ranks;
  for (const std::string& name : ListNames(folder)) {
    std::string_view rest = name;
    if (!rest.starts_with("rank")) continue;
    rest.remove_prefix(4);
    const size_t dot = rest.find(".log");
    if (dot == std::string_view::npos) continue;
    const auto rank = ScanNumber<uint32_t>(rest.substr(0, dot));
    rest.remove_prefix(dot + 4);
    const auto number = ScanNumber<uint64_t>(rest.substr(std::min<size_t>(1, rest.size())));
    const bool rotated = rest.starts_with('.') && number && *number > 0;
    if (!rank || (!rest.empty() && !rotated)) continue;
    RankFiles& files = ranks[*rank];
    files.path = folder + "/rank" + std::to_string(*rank) + ".log";
    if (rotated) files.numbers.push_back(*number);
  }
  for (auto& [rank, files] : ranks) std::sort(files.numbers.begin(), files.numbers.end());
  return ranks;
}

std::string PathOf(const RankFiles& files, uint64_t number) {
  return number == 0 ? files.path : files.path + "." + std::to_string(number);
}

Place Beginning(const RankFiles& files) {
  return {files.numbers.empty() ? 0 : files.numbers.front(), 0};
}

Place TailPlace(const RankFiles& files, uint64_t lines) {
  if (lines == 0) {
    struct stat status = {};
    return {0, stat(files.path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0};
  }
  uint64_t left = lines;
  bool newest = true;
  for (uint64_t number : NewestFirst(files)) {
    const std::string path = PathOf(files, number);
    if (const auto offset = FindBackwards(path, newest, &left)) return {number, *offset};
    struct stat status = {};
    // The line end at the very end of a rotated file ends a line that counts.
    if (stat(path.c_str(), &status) == 0 && status.st_size > 0) newest = false;
  }
  return Beginning(files);
}

Place SincePlace(const RankFiles& files, int64_t time_ns) {
  Place place{0, 0};
  struct stat status = {};
  if (stat(files.path.c_str(), &status) == 0) place.offset = static_cast<uint64_t>(status.st_size);
  for (uint64_t number : NewestFirst(files)) {
    const std::string path = PathOf(files, number);
    const TimesReader::Found found = TimesReader(path).FirstSince(time_ns);
    if (found.any) {
      if (!found.record) break;  // and those before it are older still
      place = {number, LineBeginning(path, found.record->offset)};
      continue;
    }
    if (stat(path.c_str(), &status) != 0) continue;
    if (status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec < time_ns) break;
    place = {number, 0};
  }
  return place;
}

Place Later(const Place& a, const Place& b) {
  const auto key = [](const Place& p) {
    return std::tuple(p.number == 0 ? UINT64_MAX : p.number, p.offset);
  };
  return key(a) < key(b) ? b : a;
}

}  // namespace ddprun::logs
