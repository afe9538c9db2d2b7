// Runs the commands of --on-failure and --on-finish, one after the other, on a thread of its own.
//
// Each is `/bin/sh -c COMMAND` in a process group of its own: standard input is the report, output
// goes to the log. One that has not ended after 60 s is killed with its group; what it left in its
// group when it ended, too. So a hook delays nobody and leaves nothing. At most 8 wait; more are
// left out, and told as failed. Thread-safe; the destructor waits for the running one (bounded).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

struct Hook {
  std::string name;     // on_failure, on_finish
  std::string command;  // "": nothing is done
  uint64_t generation = 0;
  std::string report_path;
  nlohmann::ordered_json report;  // written to report_path first; null: it is there
  std::map<std::string, std::string> environment;  // besides this process's own
  std::string log_path;
};

class HookRunner {
 public:
  // `ended` is called on the runner's thread, once for each hook.
  explicit HookRunner(std::function<void(HookEnded)> ended);
  ~HookRunner();
  HookRunner(const HookRunner&) = delete;
  HookRunner& operator=(const HookRunner&) = delete;

  void Run(Hook hook);
  // The same, as the last one; those that wait before it get 60 s together.
  void RunLast(Hook hook);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::coordinator
