// RemoteProcess: one child (an ssh, or an agent on this machine) with pipes on its three standard
// streams. Passive: whoever owns it polls the descriptors and reaps.
//
// The child has a process group of its own, so that Ctrl-C at the terminal is this process's to
// answer; it is killed when the thread that started it ends, however that happens. Threads: one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ddprun::cli {

class RemoteProcess {
 public:
  // `argv[0]` is a path. `first_line` is written to its standard input, which stays open; a pipe
  // takes 64 KiB at once, and the line must be shorter.
  static absl::StatusOr<std::unique_ptr<RemoteProcess>> Start(
      const std::vector<std::string>& argv, const std::vector<std::string>& environment,
      std::string_view first_line);
  // Kills and reaps it if it lives.
  ~RemoteProcess();
  RemoteProcess(const RemoteProcess&) = delete;
  RemoteProcess& operator=(const RemoteProcess&) = delete;

  int end_fd() const { return pidfd_; }  // readable when the process has ended
  bool HasEnded() const;
  int output_fd() const { return output_; }  // -1 after its end of file
  int error_fd() const { return error_; }
  // Non-blocking. Some bytes of a stream, "" for nothing now or its end, after which it is closed.
  std::string ReadOutput() { return ReadSome(&output_); }
  std::string ReadError() { return ReadSome(&error_); }
  void CloseInput();
  void Signal(int signal);  // to the whole group
  // REQUIRES: HasEnded(). Exit code; 128 + n for signal n.
  int Reap();

 private:
  RemoteProcess() = default;
  static std::string ReadSome(int* fd);

  pid_t pid_ = 0;  // 0: reaped
  int pidfd_ = -1;
  int input_ = -1;
  int output_ = -1;
  int error_ = -1;
};

}  // namespace ddprun::cli
