// For tests of several ranks: an exchange in memory that forked processes and threads share, and a
// way to run one function as N processes under a deadline.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"

namespace ddprun {

class SharedExchange {
 public:
  SharedExchange() {
    void* memory =
        mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    table_ = new (memory) Table;
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&table_->mutex, &mutex);
    pthread_condattr_t condition;
    pthread_condattr_init(&condition);
    pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&table_->changed, &condition);
  }
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;
  ~SharedExchange() { munmap(table_, sizeof(Table)); }

  Exchange Get() {
    return {[this](const std::string& group, const std::string& name, const std::string& bytes) {
              return Publish(absl::StrCat(group, "/", name), bytes);
            },
            [this](const std::string& group, const std::string& name, double timeout_seconds) {
              return Await(absl::StrCat(group, "/", name), timeout_seconds);
            }};
  }
  int published() const { return table_->count; }

 private:
  static constexpr int kEntriesMax = 512;
  struct Entry {
    char key[96];
    size_t size;
    char value[4096];
  };
  struct Table {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int count = 0;
    Entry entries[kEntriesMax];
  };

  absl::Status Publish(const std::string& key, const std::string& bytes) {
    pthread_mutex_lock(&table_->mutex);
    if (table_->count == kEntriesMax || key.size() >= sizeof(Entry::key) ||
        bytes.size() > sizeof(Entry::value)) {
      std::abort();
    }
    Entry& entry = table_->entries[table_->count++];
    std::strcpy(entry.key, key.c_str());
    entry.size = bytes.size();
    std::memcpy(entry.value, bytes.data(), bytes.size());
    pthread_cond_broadcast(&table_->changed);
    pthread_mutex_unlock(&table_->mutex);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Await(const std::string& key, double timeout_seconds) {
    const timespec until = absl::ToTimespec(absl::Now() + absl::Seconds(timeout_seconds));
    absl::StatusOr<std::string> result = absl::DeadlineExceededError("nobody published " + key);
    pthread_mutex_lock(&table_->mutex);
    for (bool waiting = true; waiting;) {
      for (int i = 0; i < table_->count && waiting; ++i) {
        if (key != table_->entries[i].key) continue;
        result = std::string(table_->entries[i].value, table_->entries[i].size);
        waiting = false;
      }
      if (waiting && pthread_cond_timedwait(&table_->changed, &table_->mutex, &until) != 0) {
        waiting = false;
      }
    }
    pthread_mutex_unlock(&table_->mutex);
    return result;
  }

  Table* table_;
};

// Runs body(rank) in `count` forked processes. Each returns what went wrong ("" when nothing did).
// The result holds one text per rank; a process that died or did not end in time (it is killed) has
// a text that says so.
inline std::vector<std::string> RunProcesses(int count, std::function<std::string(int)> body,
                                             double limit_seconds = 60) {
  struct Child {
    pid_t pid;
    int fd;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < count; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      const std::string text = body(rank);
      const ssize_t written = write(ends[1], text.data(), text.size());
      _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::vector<std::string> results(static_cast<size_t>(count));
  const absl::Time deadline = absl::Now() + absl::Seconds(limit_seconds);
  for (size_t i = 0; i < children.size(); ++i) {
    char buffer[65536];
    while (true) {
      pollfd waiting = {children[i].fd, POLLIN, 0};
      const auto left = absl::ToInt64Milliseconds(deadline - absl::Now());
      if (left <= 0 || poll(&waiting, 1, static_cast<int>(left)) <= 0) {
        kill(children[i].pid, SIGKILL);
        results[i] += " (not finished in time, killed)";
        break;
      }
      const ssize_t got = read(children[i].fd, buffer, sizeof(buffer));
      if (got <= 0) break;
      results[i].append(buffer, static_cast<size_t>(got));
    }
    close(children[i].fd);
    int state = 0;
    waitpid(children[i].pid, &state, 0);
    if (WIFSIGNALED(state)) absl::StrAppend(&results[i], " (died of signal ", WTERMSIG(state), ")");
    if (WIFEXITED(state) && WEXITSTATUS(state) != 0) {
      absl::StrAppend(&results[i], " (exit code ", WEXITSTATUS(state), ")");
    }
  }
  return results;
}

}  // namespace ddprun
