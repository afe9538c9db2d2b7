#include "launcher/logs/run_events.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

namespace ddprun::logs {
namespace {

using Json = nlohmann::json;
constexpr size_t kBlockBytes = 65536;

}  // namespace

void RunEvents::Read() {
  const int fd = open((run_dir_ + "/events.jsonl").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  std::string block(kBlockBytes, '\0');
  ssize_t size = 0;
  while ((size = pread(fd, block.data(), block.size(), static_cast<off_t>(offset_))) > 0) {
    offset_ += static_cast<uint64_t>(size);
    std::string_view rest = std::string_view(block).substr(0, static_cast<size_t>(size));
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      partial_.append(rest.substr(0, end));
      TakeLine(partial_);
      partial_.clear();
      rest.remove_prefix(end + 1);
    }
    partial_.append(rest);
  }
  close(fd);
}

void RunEvents::TakeLine(std::string_view line) {
  const auto says = [line](std::string_view event) {
    return line.find(event) != std::string_view::npos;
  };
  if (!says("\"worker_started\"") && !says("\"job_started\"") && !says("\"job_finished\"")) return;
  const Json event = Json::parse(line, nullptr, false);
  if (!event.is_object()) return;
  const auto name = event.find("event");
  if (name == event.end()) return;
  if (*name == "job_started") finished_ = false;
  if (*name == "job_finished") finished_ = true;
  if (*name != "worker_started") return;
  const auto generation = event.find("generation");
  const auto rank = event.find("rank");
  const auto node = event.find("node");
  if (generation == event.end() || !generation->is_number_unsigned() || rank == event.end() ||
      !rank->is_number_unsigned() || node == event.end() || !node->is_string()) {
    return;
  }
  nodes_[{generation->get<uint64_t>(), rank->get<uint32_t>()}] = node->get<std::string>();
}

std::string RunEvents::NodeOf(uint64_t generation, uint32_t rank) const {
  const auto found = nodes_.find({generation, rank});
  return found == nodes_.end() ? "" : found->second;
}

bool IsLocked(const std::string& run_dir) {
  const int fd = open((run_dir + "/.lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  // Shared, so that two who look do not see each other; let go of at once.
  const bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return locked;
}

}  // namespace ddprun::logs
