#include "common/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_set>

namespace ddprun {
namespace {

// A directory of /proc whose entries are numbers (processes, or threads of one).
template <typename Visit>
void ForEachNumber(const char* path, Visit visit) {
  DIR* dir = opendir(path);
  if (dir == nullptr) return;  // the process is gone
  while (const dirent* entry = readdir(dir)) {
    pid_t number = 0;
    const char* end = entry->d_name + strlen(entry->d_name);
    const auto [stop, error] = std::from_chars(entry->d_name, end, number);
    if (error == std::errc() && stop == end) visit(number, dirfd(dir));
  }
  closedir(dir);
}

// Appends the numbers of a `children` file: "12 345 6789 ".
void ReadChildren(int task_dir_fd, pid_t thread, std::vector<pid_t>* children) {
  char path[48];
  snprintf(path, sizeof path, "%d/children", thread);
  const int fd = openat(task_dir_fd, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  char buffer[4096];
  pid_t number = 0;
  ssize_t size = 0;
  while ((size = read(fd, buffer, sizeof buffer)) > 0) {
    for (char c : std::string_view(buffer, static_cast<size_t>(size))) {
      if (c >= '0' && c <= '9') {
        number = number * 10 + (c - '0');
      } else if (number > 0) {
        children->push_back(number);
        number = 0;
      }
    }
  }
  close(fd);
}

pid_t ParentOf(int proc_dir_fd, pid_t pid) {
  char path[32];
  snprintf(path, sizeof path, "%d/stat", pid);
  const int fd = openat(proc_dir_fd, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char buffer[512];
  const ssize_t size = read(fd, buffer, sizeof buffer - 1);
  close(fd);
  if (size <= 0) return 0;
  buffer[size] = '\0';
  const char* name_end = strrchr(buffer, ')');  // a process may call itself "a) R 1"
  pid_t parent = 0;
  if (name_end == nullptr || sscanf(name_end + 1, " %*c %d", &parent) != 1) return 0;
  return parent;
}

// Breadth first from root. `children_of` gives the children of one process.
template <typename ChildrenOf>
std::vector<pid_t> Walk(pid_t root, std::span<const pid_t> except, ChildrenOf children_of) {
  std::unordered_set<pid_t> seen(except.begin(), except.end());
  seen.insert(root);
  std::vector<pid_t> found;
  std::vector<pid_t> children = children_of(root);
  for (size_t next = 0;; ++next) {
    for (pid_t child : children) {
      if (seen.insert(child).second) found.push_back(child);
    }
    if (next == found.size()) return found;
    children = children_of(found[next]);
  }
}

bool KernelListsChildren() {
  static const bool lists = access("/proc/thread-self/children", R_OK) == 0;
  return lists;
}

}  // namespace

std::vector<pid_t> ListDescendantsByChildren(pid_t root, std::span<const pid_t> except) {
  return Walk(root, except, [](pid_t pid) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    std::vector<pid_t> children;
    ForEachNumber(path, [&](pid_t thread, int dir_fd) { ReadChildren(dir_fd, thread, &children); });
    return children;
  });
}

std::vector<pid_t> ListDescendantsByScan(pid_t root, std::span<const pid_t> except) {
  std::multimap<pid_t, pid_t> children_by_parent;
  ForEachNumber("/proc", [&](pid_t pid, int dir_fd) {
    children_by_parent.emplace(ParentOf(dir_fd, pid), pid);
  });
  return Walk(root, except, [&](pid_t pid) {
    std::vector<pid_t> children;
    const auto [first, last] = children_by_parent.equal_range(pid);
    for (auto it = first; it != last; ++it) children.push_back(it->second);
    return children;
  });
}

std::vector<pid_t> ListDescendants(pid_t root, std::span<const pid_t> except) {
  return KernelListsChildren() ? ListDescendantsByChildren(root, except)
                               : ListDescendantsByScan(root, except);
}

std::vector<pid_t> KillDescendants(pid_t root, std::span<const pid_t> except, int signal) {
  std::vector<pid_t> descendants = ListDescendants(root, except);
  for (pid_t pid : descendants) kill(pid, signal);
  return descendants;
}

}  // namespace ddprun
