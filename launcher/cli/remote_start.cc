#include "launcher/cli/remote_start.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace ddprun::cli {
namespace {

constexpr absl::string_view kStartMark = "ddprun-start:";
constexpr absl::string_view kNoFolder = "no-folder";
constexpr absl::string_view kNoProgram = "no-program";
constexpr absl::string_view kAgent = "agent";
constexpr absl::string_view kJobOver = "job-over";

constexpr double kBackOffSecondsMin = 5;
constexpr double kBackOffSecondsMax = 60;

// What ssh says, what to do, and whether it may pass. The first that is found counts.
struct Known {
  absl::string_view words;
  absl::string_view fix;  // HOST stands for the target
  bool passing = false;
  bool busy = false;
};
constexpr std::array kKnown = {
    Known{"REMOTE HOST IDENTIFICATION HAS CHANGED",
          "another machine answers under this name, or it was installed again: if so, "
          "ssh-keygen -R HOST and then ssh HOST once"},
    Known{"Host key verification failed", "log in once by hand to accept its key: ssh HOST"},
    Known{"host key is known for", "log in once by hand to accept its key: ssh HOST"},
    Known{"Permission denied",
          "ssh must log in without a question: ssh-copy-id HOST, then test "
          "with ssh -o BatchMode=yes HOST true"},
    Known{"Too many authentication failures",
          "name the key to use: --ssh 'ssh -o IdentitiesOnly=yes -i FILE'"},
    Known{"Could not resolve hostname",
          "check the name in --hosts, or add it to DNS, /etc/hosts or ~/.ssh/config"},
    Known{"Connection refused", "is sshd running there? Another port: --ssh 'ssh -p PORT'", true},
    Known{"No route to host", "is it switched on, and does the network reach it?", true},
    Known{"Network is unreachable", "is it switched on, and does the network reach it?", true},
    Known{"timed out", "is it switched on, and does a firewall let ssh through?", true},
    Known{"Bad configuration option", "check the options of --ssh and ~/.ssh/config"},
    Known{"Connection closed by", "its sshd has ended the connection: look at its log", true, true},
    Known{"Connection reset by", "its sshd has ended the connection: look at its log", true, true},
    Known{"kex_exchange_identification", "its sshd has ended the connection: look at its log", true,
          true},
};

const Known* Find(const FailedStart& start) {
  for (const Known& known : kKnown) {
    for (const std::string& line : start.lines) {
      if (absl::StrContains(line, known.words)) return &known;
    }
  }
  return nullptr;
}

std::string LastLine(const FailedStart& start) {
  for (auto line = start.lines.rbegin(); line != start.lines.rend(); ++line) {
    if (!line->empty()) return *line;
  }
  return "";
}

// The line that holds what is known, else the last one.
std::string Telling(const FailedStart& start, const Known* known) {
  for (const std::string& line : start.lines) {
    if (known != nullptr && absl::StrContains(line, known->words)) return line;
  }
  return LastLine(start);
}

}  // namespace

std::string ShellQuoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string RemoteCommand(const RemotePlace& place, const std::vector<std::string>& arguments) {
  const std::string program = ShellQuoted(place.ddprun);
  const std::string words =
      absl::StrJoin(arguments, " ", [](std::string* out, const std::string& argument) {
        absl::StrAppend(out, ShellQuoted(argument));
      });
  const std::string script = absl::StrCat(
      "cd ", ShellQuoted(place.working_dir), " 2>/dev/null || { echo ", kStartMark, kNoFolder,
      " >&2; exit 1; }; test -x ", program, " || { echo ", kStartMark, kNoProgram,
      " >&2; exit 1; }; echo ", kStartMark, kAgent, " >&2; exec ", program, " ", words);
  return absl::StrCat("exec /bin/sh -c ", ShellQuoted(script));
}

std::vector<std::string> SshCommand(const RemotePlace& place, const std::string& target,
                                    const std::string& remote_command) {
  // The first value of an option counts for ssh, so that what was typed wins. A connection that a
  // person has opened may be shared; none is left behind in the background.
  std::vector<std::string> command = {"/bin/sh", "-c", absl::StrCat("exec ", place.ssh, " \"$@\""),
                                      "ssh"};
  for (const char* flag : {"-T", "-x", "-a"}) command.emplace_back(flag);
  const std::string connect = absl::StrCat("ConnectTimeout=", kSshConnectSeconds);
  for (const char* option : {"BatchMode=yes", connect.c_str(), "ConnectionAttempts=1",
                             "ServerAliveInterval=5", "ServerAliveCountMax=3", "ControlMaster=no",
                             "ClearAllForwardings=yes", "EscapeChar=none", "LogLevel=ERROR"}) {
    command.emplace_back("-o");
    command.emplace_back(option);
  }
  command.push_back(target);
  command.push_back(remote_command);
  return command;
}

std::string JobOverMark() {
  return absl::StrCat(kStartMark, kJobOver);
}

std::optional<StartMark> MarkIn(absl::string_view line) {
  if (!absl::StartsWith(line, kStartMark)) return std::nullopt;
  line.remove_prefix(kStartMark.size());
  if (line == kNoFolder) return StartMark::kNoFolder;
  if (line == kNoProgram) return StartMark::kNoProgram;
  if (line == kAgent) return StartMark::kAgent;
  if (line == kJobOver) return StartMark::kJobOver;
  return std::nullopt;
}

StartFailure Explain(const FailedStart& start, const RemotePlace& place, const HostEntry& host) {
  const auto says = [&host](const std::string& reason, const std::string& fix) {
    return absl::StrCat("host ", host.target, ": ", reason, "; ", fix);
  };
  switch (start.mark) {
    case StartMark::kNoFolder:
      return {says(absl::StrCat("the folder ", place.working_dir, " is not there"),
                   "ddprun works in the same folder on every host: use a shared file system, or "
                   "make it there")};
    case StartMark::kNoProgram:
      return {says(absl::StrCat(place.ddprun, " is not there, or may not be executed"),
                   "copy ddprun's folder to the same place on that host")};
    case StartMark::kAgent:
    case StartMark::kJobOver:
    case StartMark::kNone:
      break;
  }
  const Known* known = Find(start);
  std::string line = Telling(start, known);
  while (absl::EndsWith(line, ".") || absl::EndsWith(line, " ")) line.pop_back();
  if (known != nullptr) {
    return {
        says(absl::StrCat("ssh: ", line), absl::StrReplaceAll(known->fix, {{"HOST", host.target}})),
        known->passing, known->busy};
  }
  if (start.timed_out) {
    return {says(absl::StrCat("ssh had not started anything there after ", kStartSecondsMax, " s",
                              line.empty() ? "" : absl::StrCat(" (", line, ")")),
                 absl::StrCat("test with ssh -o BatchMode=yes ", host.target, " true")),
            true};
  }
  if (start.exit_code == 127) {
    return {
        says(absl::StrCat("--ssh ", place.ssh, " cannot be run", line.empty() ? "" : ": ", line),
             "install openssh-client, or name another program with --ssh")};
  }
  return {says(absl::StrCat("ssh ended with code ", start.exit_code,
                            line.empty() ? "" : absl::StrCat(": ", line)),
               absl::StrCat("test with ssh -o BatchMode=yes ", host.target, " true"))};
}

double BackOffSeconds(int failures) {
  double seconds = kBackOffSecondsMin;
  for (int i = 1; i < failures && seconds < kBackOffSecondsMax; ++i) seconds *= 2;
  return std::min(seconds, kBackOffSecondsMax);
}

}  // namespace ddprun::cli
