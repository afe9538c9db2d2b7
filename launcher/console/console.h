// Console: the one writer of the terminal. Worker output goes to standard output with a prefix,
// ddprun's own lines and the updating status line go to standard error; on a terminal the status
// line is taken away before a line is printed and put back after.
//
// Threads: every method from any thread; none of them blocks on a slow reader. Output waits in a
// bounded queue (kQueueBytesMax) that one thread of its own writes; what does not fit is dropped
// and counted, and a line says so. Log files are complete all the same. A reader that is slow on
// one of the two does not hold up the other, unless both are the same file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ddprun {

class Console {
 public:
  static constexpr size_t kQueueBytesMax = 4u << 20;
  // A line without an end is shown in pieces of this size.
  static constexpr size_t kLineBytesMax = 16384;
  // Of the updates of a progress bar (lines ended by \r alone), one in so long is shown for each
  // worker, and the last one before a line or the worker's end.
  static constexpr double kUpdateSeconds = 1;

  Console();  // file descriptors 1 and 2
  // Others, which stay open until the console is gone. Neither is made non-blocking.
  Console(int output_fd, int error_fd);
  // Writes what waits, for at most 1 s. When standard output was not read in that time, a last line
  // on standard error says how much was not shown.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Bytes from a worker; complete lines are shown as "[prefix] line". The rest waits for its end,
  // or for EndOf. `dropped_before`: bytes left out by others before these.
  void WorkerOutput(const std::string& prefix, std::string_view bytes, size_t dropped_before);
  void EndOf(const std::string& prefix);
  // A line of workers' output that another node's console has made: it has its prefix.
  void WorkerLine(std::string_view line);
  // One line of ddprun's own, on standard error.
  void Say(const std::string& line);
  // The updating line; only shown on a terminal. "" takes it away.
  void Status(const std::string& line);
  bool IsTerminal() const;  // standard error
  // Waits until all that was queued so far is written, at most so long.
  void Flush(double timeout_seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
