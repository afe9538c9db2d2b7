// Runs a program to its end with a deadline, and catches what it writes.
#pragma once

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

// build/bin/ddprun
std::string DdprunPath();

}  // namespace ddprun::cli
