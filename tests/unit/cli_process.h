// Runs a program to its end with a deadline, and catches what it writes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ddprun::cli {

struct Ended {
  int exit_code = -1;  // 128 + signal for a signal
  std::string output;
  std::string error;
  double seconds = 0;
};

// `environment` holds NAME=VALUE to add. A program that runs longer than 60 s is killed, which
// fails the test.
Ended RunToEnd(const std::vector<std::string>& command, const std::string& working_dir,
               const std::vector<std::string>& environment = {});

// A program that runs while the test looks at it. Killed when it is still there at the end.
class Running {
 public:
  // `ignored_signal`: ignored by the program from its start (nohup); 0: none.
  Running(const std::vector<std::string>& command, const std::string& working_dir,
          int ignored_signal = 0);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  pid_t pid() const { return pid_; }
  // Reads what it writes (standard output and error together) until `text` has come `times` times,
  // and returns all that has come so far. Fails the test at its end or after 60 s.
  std::string WaitFor(const std::string& text, int times = 1);
  void Signal(int number);
  // Its exit code, 128 + signal for a signal. `rest` gets all that it wrote.
  int WaitForEnd(std::string* rest = nullptr);

 private:
  bool ReadSome();
  pid_t pid_ = -1;
  int fd_ = -1;
  bool ended_ = false;
  std::string all_;
};

// build/bin/ddprun
std::string DdprunPath();

}  // namespace ddprun::cli
