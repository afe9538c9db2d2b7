// A conversation with `ddprun doctor --answer` behind a command such as ssh. One thread. The
// destructor closes the command's standard input, gives it a moment to end, and then kills its
// process group.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/doctor_lines.h"

namespace ddprun::doctor {

class Session {
 public:
  static absl::StatusOr<std::unique_ptr<Session>> Start(const std::vector<std::string>& command);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // UNAVAILABLE: the other side ended or did not answer in time; says what the command printed on
  // standard error.
  absl::StatusOr<nlohmann::ordered_json> Ask(const nlohmann::ordered_json& question,
                                             std::chrono::steady_clock::time_point deadline);

 private:
  Session(pid_t pid, int socket, int error_file);
  std::string LastWords() const;
  pid_t pid_;
  int socket_;      // its standard input and output
  int error_file_;  // memfd with its standard error
  LineReader lines_;
};

}  // namespace ddprun::doctor
