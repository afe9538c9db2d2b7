#include "launcher/cli/supervision_values.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ddprun::cli {
namespace {

constexpr uint64_t kLogBytesMin = 4096;  // less would be files, not logs
constexpr uint64_t kLogBytesMax = uint64_t{1} << 50;
constexpr int kSignalMax = 64;

absl::Status Wrong(absl::string_view text) {
  return absl::InvalidArgumentError(text);
}

bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// A worker's code: a number, or a signal's name for 128 + n.
absl::StatusOr<int32_t> ParseCode(const std::string& text) {
  int32_t code = 0;
  if (IsNumber(text)) {
    if (absl::SimpleAtoi(text, &code) && code >= 1 && code <= kWorkerCodeMax) return code;
    return Wrong(
        absl::StrCat(text, " is no code of a failure: they go from 1 to ", kWorkerCodeMax));
  }
  const absl::StatusOr<int32_t> signal = ParseSignal(text);
  if (signal.ok()) return 128 + *signal;
  return Wrong(absl::StrCat("\"", text,
                            "\" is neither a number from 1 to 255 nor a signal; for example "
                            "1-10,85,SIGKILL"));
}

absl::StatusOr<std::vector<int32_t>> ParseSignals(const std::string& text) {
  std::vector<int32_t> signals;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const absl::StatusOr<int32_t> signal = ParseSignal(part);
    if (!signal.ok()) return signal.status();
    if (std::find(signals.begin(), signals.end(), *signal) == signals.end()) {
      signals.push_back(*signal);
    }
  }
  return signals;
}

// Nobody can wait for these: the kernel keeps them for itself, or they mean that this process is
// broken.
constexpr std::array<int, 12> kUnusable = {SIGKILL, SIGSTOP, SIGCHLD, SIGSEGV, SIGBUS,  SIGFPE,
                                           SIGILL,  SIGABRT, SIGTRAP, SIGSYS,  SIGPIPE, SIGURG};
// A terminal stops and continues ddprun and its workers with these.
constexpr std::array<int, 4> kJobControl = {SIGTSTP, SIGCONT, SIGTTIN, SIGTTOU};

absl::Status CheckUsable(const std::vector<int32_t>& signals) {
  for (int32_t signal : signals) {
    if (std::find(kUnusable.begin(), kUnusable.end(), signal) != kUnusable.end()) {
      return Wrong(absl::StrCat(SignalName(signal),
                                " cannot be caught or says that ddprun itself is broken; for "
                                "example SIGUSR1,SIGTERM can be given"));
    }
    if (std::find(kJobControl.begin(), kJobControl.end(), signal) != kJobControl.end()) {
      return Wrong(absl::StrCat(SignalName(signal),
                                " belongs to the terminal, which stops and continues the job "
                                "with it (Ctrl-Z, fg)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string SignalName(int32_t signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

absl::StatusOr<int32_t> ParseSignal(const std::string& text) {
  int32_t number = 0;
  if (IsNumber(text)) {
    if (absl::SimpleAtoi(text, &number) && number >= 1 && number <= kSignalMax) return number;
  } else {
    const std::string upper = absl::AsciiStrToUpper(text);
    const std::string name = absl::StartsWith(upper, "SIG") ? upper.substr(3) : upper;
    for (int signal = 1; signal < kSignalMax; ++signal) {
      const char* known = sigabbrev_np(signal);
      if (known != nullptr && name == known) return signal;
    }
  }
  return Wrong(
      absl::StrCat("\"", text, "\" is no signal; give names, for example SIGUSR1,SIGTERM"));
}

absl::StatusOr<std::vector<int32_t>> ParseCodes(const std::string& text) {
  std::vector<int32_t> codes;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    if (ends.size() > 2) return Wrong(absl::StrCat("\"", part, "\" is no range; write 1-10"));
    const absl::StatusOr<int32_t> first = ParseCode(ends[0]);
    if (!first.ok()) return first.status();
    const absl::StatusOr<int32_t> last = ParseCode(ends.back());
    if (!last.ok()) return last.status();
    if (*first > *last) return Wrong(absl::StrCat(part, " ends before it begins"));
    for (int32_t code = *first; code <= *last; ++code) codes.push_back(code);
  }
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  return codes;
}

absl::StatusOr<std::map<int32_t, int32_t>> ParseCodeMap(const std::string& text) {
  std::map<int32_t, int32_t> map;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> sides = absl::StrSplit(part, '=');
    if (sides.size() != 2) {
      return Wrong(absl::StrCat("\"", part,
                                "\" has not the form CODE=CODE; for example "
                                "85=75,SIGSEGV=3"));
    }
    const absl::StatusOr<int32_t> from = ParseCode(sides[0]);
    if (!from.ok()) return from.status();
    int32_t to = 0;
    if (!IsNumber(sides[1]) || !absl::SimpleAtoi(sides[1], &to) || to > kWorkerCodeMax) {
      return Wrong(absl::StrCat("\"", sides[1], "\" is no exit code: they go from 0 to 255"));
    }
    if (!map.emplace(*from, to).second) {
      return Wrong(absl::StrCat("names ", sides[0], " twice"));
    }
  }
  return map;
}

absl::StatusOr<std::vector<int32_t>> ParseForwardedSignals(const std::string& text) {
  if (text == "none") return std::vector<int32_t>{};
  absl::StatusOr<std::vector<int32_t>> signals = ParseSignals(text);
  if (!signals.ok()) return signals;
  absl::Status usable = CheckUsable(*signals);
  if (!usable.ok()) return usable;
  return signals;
}

absl::StatusOr<std::vector<int32_t>> ParseStopSignals(const std::string& text) {
  absl::StatusOr<std::vector<int32_t>> signals = ParseSignals(text);
  if (!signals.ok()) return signals;
  absl::Status usable = CheckUsable(*signals);
  if (!usable.ok()) return usable;
  return signals;
}

absl::StatusOr<uint64_t> ParseBytes(const std::string& text) {
  absl::Status bad = Wrong("give a size, for example 500K, 100M or 2G, or 0 for no limit");
  std::string digits = text;
  if (absl::EndsWithIgnoreCase(digits, "iB")) {
    digits.resize(digits.size() - 2);
  } else if (absl::EndsWithIgnoreCase(digits, "B")) {
    digits.resize(digits.size() - 1);
  }
  int shift = 0;
  if (!digits.empty() && !absl::ascii_isdigit(digits.back())) {
    const char unit = absl::ascii_toupper(digits.back());
    shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : unit == 'T' ? 40 : 0;
    if (shift == 0) return bad;
    digits.pop_back();
  }
  uint64_t number = 0;
  if (!IsNumber(digits) || !absl::SimpleAtoi(digits, &number) || number > (kLogBytesMax >> shift)) {
    return bad;
  }
  const uint64_t bytes = number << shift;
  if (bytes != 0 && bytes < kLogBytesMin) return Wrong("is less than 4K");
  return bytes;
}

}  // namespace ddprun::cli
