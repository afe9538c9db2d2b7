#include "launcher/agent/core_dump.h"

#include <glob.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace ddprun::agent {
namespace {

constexpr int64_t kCoreSecondNs = 1'000'000'000;
// The kernel dates files by the last tick of its clock, which may lie before a start that we have
// timed exactly.
constexpr int64_t kTickNs = 20'000'000;

// A name with what glob would take for a pattern made harmless.
std::string Literal(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

std::string FirstLine(const char* path) {
  absl::StatusOr<std::string> text = PosixFileSystem().ReadFile(path);
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

// The newest file of this worker that the pattern fits; "" for none.
std::string FindCore(const std::string& pattern, int64_t not_before_ns) {
  glob_t found = {};
  std::string best;
  int64_t best_ns = not_before_ns - kTickNs;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      struct stat info = {};
      if (stat(found.gl_pathv[i], &info) != 0 || !S_ISREG(info.st_mode)) continue;
      const int64_t time_ns = info.st_mtim.tv_sec * kCoreSecondNs + info.st_mtim.tv_nsec;
      if (time_ns < best_ns) continue;
      best_ns = time_ns;
      best = found.gl_pathv[i];
    }
  }
  globfree(&found);
  return best;
}

std::string DescribePipe(const CoreFacts& facts) {
  const std::string command = facts.pattern.substr(1);
  if (command.find("systemd-coredump") != std::string::npos) {
    return absl::StrCat("systemd-coredump took the core: coredumpctl info ", facts.pid);
  }
  if (command.find("apport") != std::string::npos) {
    return "apport took the core: see /var/crash and /var/lib/apport/coredump";
  }
  return absl::StrCat("the core was handed to '", command.substr(0, command.find(' ')),
                      "' (/proc/sys/kernel/core_pattern)");
}

}  // namespace

bool MakesCore(int signal) {
  switch (signal) {
    case SIGQUIT:
    case SIGILL:
    case SIGTRAP:
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGSEGV:
    case SIGXCPU:
    case SIGXFSZ:
    case SIGSYS:
      return true;
    default:
      return false;
  }
}

std::string CoreGlob(const CoreFacts& facts) {
  std::string out;
  bool has_pid = false;
  for (size_t i = 0; i < facts.pattern.size(); ++i) {
    if (facts.pattern[i] != '%') {
      absl::StrAppend(&out, Literal(facts.pattern.substr(i, 1)));
      continue;
    }
    if (++i >= facts.pattern.size()) break;  // the kernel drops a % at the end
    const char specifier = facts.pattern[i];
    if (specifier == '%') out.push_back('%');
    if (specifier == 'p') absl::StrAppend(&out, facts.pid);
    if (specifier == 's') absl::StrAppend(&out, facts.signal);
    if (specifier == 'h') absl::StrAppend(&out, Literal(facts.host));
    if (specifier == 'c') absl::StrAppend(&out, facts.limit_bytes);
    has_pid = has_pid || specifier == 'p' || specifier == 'P';
    // The pid outside of our namespace, the thread, the user, the time, the program's name …
    if (std::string_view("%pshc").find(specifier) == std::string_view::npos) out.push_back('*');
  }
  if (facts.uses_pid && !has_pid) absl::StrAppend(&out, ".", facts.pid);
  if (!out.empty() && out[0] != '/') out = absl::StrCat(Literal(facts.directory), "/", out);
  return out;
}

std::string DescribeCore(const CoreFacts& facts) {
  if (!MakesCore(facts.signal)) return "";
  if (facts.pattern.empty()) return "";
  if (facts.pattern[0] == '|') return facts.dumped ? DescribePipe(facts) : "";
  if (!facts.dumped && facts.limit_bytes == 0) {
    return "no core was written, since the limit of core files is 0: 'ulimit -c unlimited' before "
           "ddprun allows them";
  }
  if (!facts.dumped) return "";  // the program wanted none, or could not write there
  const std::string pattern = CoreGlob(facts);
  const std::string path = FindCore(pattern, facts.started_ns);
  if (!path.empty()) return absl::StrCat("core dump: ", path);
  return absl::StrCat("a core was dumped as '", facts.pattern,
                      "' (/proc/sys/kernel/core_pattern), but no file ", pattern, " is there");
}

CoreFacts CoreFactsHere(const std::string& directory, pid_t pid, int signal, bool dumped,
                        int64_t started_ns) {
  CoreFacts facts;
  facts.pattern = FirstLine("/proc/sys/kernel/core_pattern");
  facts.uses_pid = FirstLine("/proc/sys/kernel/core_uses_pid") == "1";
  rlimit limit = {};
  getrlimit(RLIMIT_CORE, &limit);
  facts.limit_bytes = limit.rlim_cur;
  facts.directory = directory;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  facts.host = host;
  facts.pid = pid;
  facts.signal = signal;
  facts.dumped = dumped;
  facts.started_ns = started_ns;
  return facts;
}

}  // namespace ddprun::agent
