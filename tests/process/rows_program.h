// A program as a user starts it: in a folder, in the background or at a terminal, with what it
// says.
//
// Everything is waited for with a deadline; the destructor kills what is left of it (by id).
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace ddprun::testing {

class Program {
 public:
  enum class Where { kBackground, kTerminal };

  // `command[0]` is a path. At a terminal the program leads the session and the foreground group.
  Program(std::vector<std::string> command, const std::string& folder,
          Where where = Where::kBackground, std::map<std::string, std::string> environment = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // Standard output and error so far.
  std::string Output();
  bool Says(const std::string& text, double seconds = 20);
  // What comes behind the first `marker`, up to the end of its line; "" when it does not come.
  std::string LineBehind(const std::string& marker, double seconds = 20);
  // As typed on the keyboard: '\x03' is Ctrl-C.
  void Type(char key);
  // As when the window is closed: the kernel sends SIGHUP.
  void CloseTerminal();
  void Signal(int signal);
  // Its exit code, 128 + n for a signal; -1 when it does not end in time.
  int Wait(double seconds = 30);

 private:
  pid_t pid_ = -1;
  int terminal_ = -1;
  int code_ = -1;  // once it has ended
  std::string output_path_;
  std::string seen_;  // of the terminal
};

// A folder that is removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace ddprun::testing
