// How an agent is started on another host by ssh, and what it means when that fails. Pure.
//
// The remote command works in any login shell. It says where it is on standard error, in lines of
// its own (kStartMark and a word): so what ssh and the host's shell print before is told apart from
// what the agent says, and a missing folder or program from an agent's exit code. The secret is no
// part of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/cli/hosts.h"

namespace ddprun::cli {

inline constexpr int kSshConnectSeconds = 10;
// From ssh's start until the agent's: a host that answers at all needs less.
inline constexpr int kStartSecondsMax = 30;

// Quoted for a shell.
std::string ShellQuoted(absl::string_view text);

// What is needed on every host.
struct RemotePlace {
  std::string ssh = "ssh";  // as typed, with its options; a shell takes it apart
  std::string ddprun;       // the program's path, the same as here
  std::string working_dir;  // likewise
};

// The command for a host's login shell.
std::string RemoteCommand(const RemotePlace& place, const std::vector<std::string>& arguments);
// argv that runs it there. No terminal, no question, no forwarding; the user's own options come
// first and therefore win.
std::vector<std::string> SshCommand(const RemotePlace& place, const std::string& target,
                                    const std::string& remote_command);

enum class StartMark { kNone, kNoFolder, kNoProgram, kAgent, kJobOver };
// Said by an agent that ends with its job, so that its end surprises nobody.
std::string JobOverMark();
// Of a line of standard error; nullopt: it is no mark.
std::optional<StartMark> MarkIn(absl::string_view line);

// How a start ended before the agent ran.
struct FailedStart {
  StartMark mark = StartMark::kNone;
  bool timed_out = false;
  int exit_code = 0;               // of ssh
  std::vector<std::string> lines;  // the last ones of its output, fit to be shown
};
struct StartFailure {
  std::string text;      // one line: reason and fix
  bool passing = false;  // may go by itself: the network, a host that boots
  bool busy = false;     // the host had too much to do: worth another try at once
};
StartFailure Explain(const FailedStart& start, const RemotePlace& place, const HostEntry& host);

// Pause before an agent is started again, after so many failures in a row (from 1).
double BackOffSeconds(int failures);

}  // namespace ddprun::cli
