#include "launcher/agent/exit_hint.h"

#include <algorithm>
#include <cctype>
#include <span>
#include <string>

#include "absl/strings/ascii.h"

namespace ddprun::agent {
namespace {

using Words = std::span<const std::string_view>;

constexpr size_t kLinesWithoutTraceback = 40;

// Each says by itself that a collective or the store under it has lost a peer. Lower case.
constexpr std::string_view kLostPeer[] = {
    // NCCL, and PyTorch about it
    "ncclremoteerror",
    "remote process exited or there was a network error",
    "nccl communicator was aborted",
    "nccl communicator has been aborted",
    "watchdog caught collective operation timeout",
    "some nccl operations have failed or timed out",
    "collective timeout from rank",
    "nccl warn net : connection closed by remote peer",
    "net/ib : got completion from peer",
    // c10d's store and barrier
    "connection was likely closed. did the remote server shutdown or crash?",
    "recvvalue failed on",
    "recvvector failed on",
    "recvstring failed on",
    "sendbytes failed on",
    "sendvalue failed on",
    "diststoreerror: socket timeout",
    "the client socket has timed out after",
    "the client socket has failed to connect to",
    "failed to pass monitoredbarrier",
    "gloo connectfullmesh failed",
    // Horovod
    "horovod has been shut down. this was caused by an exception on one of the ranks",
};

// These say it only where one of kCarriers stands beside them.
constexpr std::string_view kBrokenConnection[] = {
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "connection timed out",
    "socket closed",
    "timed out waiting",
    "read error",
    "socket timeout",
    "application timeout caused pair closure",
    "connection aborted",
    "waiting for clients",
};
constexpr std::string_view kCarriers[] = {
    "gloo/",       "[gloo]",         "processgroupgloo", "processgroupnccl", "c10d",
    "tcpstore",    "tcp_store",      "tcp_utils",        "distbackenderror", "distnetworkerror",
    "nccl warn",   "misc/socket.cc", "horovodinternal",  "diststoreerror",   "nccl error",
    "prefixstore", "tensorpipe",
};

// NCCL's system error is a lost peer unless the machine itself was short of something.
constexpr std::string_view kNcclSystem[] = {"ncclsystemerror", "unhandled system error"};
constexpr std::string_view kLocalShortage[] = {
    "no space left on device", "/dev/shm",          "cannot allocate memory",
    "too many open files",     "permission denied", "operation not permitted",
};

// An error of the worker's own, whatever its teardown says.
constexpr std::string_view kOwnError[] = {
    "cuda error",           "out of memory",       "outofmemoryerror",
    "unhandled cuda error", "segmentation fault",  "fatal python error",
    "ncclinvalidusage",     "ncclinvalidargument", "illegal memory access",
    "device-side assert",   "assertion failed",    "ncclinternalerror",
};

// Folders of the code that led to an exception.
constexpr std::string_view kCollectiveFrames[] = {"torch/distributed/", "paddle/distributed/",
                                                  "horovod/", "torch/nn/parallel/distributed"};

constexpr std::string_view kPortInUse[] = {
    "address already in use",
    "eaddrinuse",
    "errno: 98",
    "errno 98",
};
constexpr std::string_view kStoreListens[] = {
    "tcpstore",
    "tcp_store",
    "init_process_group",
    "the server socket has failed to listen",
    "the server socket has failed to bind",
    "init_parallel_env",
};

bool HasAny(std::string_view text, Words words) {
  return std::any_of(words.begin(), words.end(), [text](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  });
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find_first_of("\r\n");
    if (end != 0) lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return lines;
}

// Launchers and loggers put things like "[rank2]: " before each line of a traceback.
std::string_view WithoutPrefix(std::string_view line) {
  while (!line.empty() && line.front() == '[') {
    const size_t end = line.find("]:");
    if (end == std::string_view::npos) break;
    line.remove_prefix(end + 2);
    if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  }
  return line;
}

// The numbers of 2 to 5 digits that stand in the text by themselves.
bool NamesPort(std::string_view text, const std::vector<uint32_t>& ports) {
  for (size_t at = 0; at < text.size();) {
    if (isdigit(static_cast<unsigned char>(text[at])) == 0) {
      ++at;
      continue;
    }
    uint64_t number = 0;
    size_t end = at;
    while (end < text.size() && isdigit(static_cast<unsigned char>(text[end])) != 0) {
      number = std::min<uint64_t>(number * 10 + static_cast<uint64_t>(text[end] - '0'), 1 << 20);
      ++end;
    }
    if (std::find(ports.begin(), ports.end(), number) != ports.end()) return true;
    at = end;
  }
  return false;
}

// Whether it names a port of its own ("port: 29500", "('', 8080)", "[::]:29500"): then only one of
// ours is ours to change.
bool NamesAnyPort(std::string_view text) {
  for (std::string_view mark : {std::string_view("port: "), std::string_view("]:"),
                                std::string_view("', "), std::string_view("port ")}) {
    const size_t at = text.find(mark);
    if (at != std::string_view::npos && at + mark.size() < text.size() &&
        isdigit(static_cast<unsigned char>(text[at + mark.size()])) != 0) {
      return true;
    }
  }
  return false;
}

bool IsPortCollision(std::string_view text, const std::vector<uint32_t>& ports) {
  if (!HasAny(text, kPortInUse)) return false;
  if (NamesPort(text, ports)) return true;
  return HasAny(text, kStoreListens) && !NamesAnyPort(text);
}

bool IsLostPeer(std::string_view text) {
  if (HasAny(text, kLostPeer)) return true;
  if (HasAny(text, kNcclSystem)) return !HasAny(text, kLocalShortage);
  return HasAny(text, kBrokenConnection) && HasAny(text, kCarriers);
}

// One exception of a traceback: its line and what it goes on with, and the lines of code that led
// there.
struct Exception {
  std::string words;   // lower case
  std::string frames;  // lower case
};

constexpr std::string_view kTracebackBegins = "Traceback (most recent call last):";
constexpr std::string_view kChained[] = {
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
};

bool IsChainLine(std::string_view line) {
  return line == kChained[0] || line == kChained[1];
}

// The first exception of the last chain. False: there is no traceback. *cut: the chain's beginning
// lies before `lines`.
bool FirstOfLastChain(const std::vector<std::string_view>& lines, Exception* first, bool* cut) {
  std::vector<size_t> begins;  // of the tracebacks
  for (size_t i = 0; i < lines.size(); ++i) {
    if (WithoutPrefix(lines[i]).starts_with(kTracebackBegins)) begins.push_back(i);
  }
  if (begins.empty()) return false;
  size_t index = begins.size() - 1;
  const auto chained = [&](size_t begin) {
    return begin > 0 && IsChainLine(WithoutPrefix(lines[begin - 1]));
  };
  while (index > 0 && chained(begins[index])) --index;
  *cut = chained(begins[index]);
  size_t at = begins[index] + 1;
  for (; at < lines.size(); ++at) {
    const std::string_view line = WithoutPrefix(lines[at]);
    if (!line.starts_with(' ') && !line.starts_with('\t')) break;
    first->frames.append(line).push_back('\n');
  }
  for (; at < lines.size(); ++at) {
    const std::string_view line = WithoutPrefix(lines[at]);
    if (IsChainLine(line) || line.starts_with(kTracebackBegins)) break;
    first->words.append(line).push_back('\n');
  }
  absl::AsciiStrToLower(&first->words);
  absl::AsciiStrToLower(&first->frames);
  return true;
}

// What a Python exception speaks of. Its type counts: requests' ConnectionError is an application's
// matter. Frames inside torch.distributed give context that the message may lack.
v1::ExitHint HintOfException(const Exception& e, const std::vector<uint32_t>& ports) {
  const std::string_view line = std::string_view(e.words).substr(0, e.words.find('\n'));
  const std::string_view type = line.substr(0, line.find(':'));
  const bool by_collectives = HasAny(e.frames, kCollectiveFrames);
  const bool is_c10d = type.find("dist") != std::string_view::npos;
  // The lines below the first belong to c10d's exceptions; below others they may be another
  // thread's words or the teardown's.
  const std::string_view text =
      is_c10d ? std::string_view(e.words).substr(0, e.words.find("exception raised from")) : line;
  if (IsPortCollision(e.words, ports)) return v1::HINT_PORT_COLLISION;
  if (by_collectives && HasAny(e.words, kPortInUse) && !NamesAnyPort(e.words)) {
    return v1::HINT_PORT_COLLISION;
  }
  if (HasAny(text, kOwnError)) return v1::EXIT_HINT_UNSPECIFIED;
  static constexpr std::string_view kTypes[] = {"runtimeerror",    "connectionreseterror",
                                                "brokenpipeerror", "oserror",
                                                "systemerror",     "timeouterror"};
  const bool could_be = is_c10d || type.find("horovod") != std::string_view::npos ||
                        std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
  const bool lost = IsLostPeer(text) || (by_collectives && HasAny(text, kBrokenConnection));
  return could_be && lost ? v1::HINT_COMMUNICATION : v1::EXIT_HINT_UNSPECIFIED;
}

v1::ExitHint HintOfLines(std::span<const std::string_view> lines,
                         const std::vector<uint32_t>& ports) {
  bool lost = false;
  bool collision = false;
  for (const std::string_view line : lines) {
    std::string text(line);
    absl::AsciiStrToLower(&text);
    if (HasAny(text, kOwnError)) return v1::EXIT_HINT_UNSPECIFIED;
    collision = collision || IsPortCollision(text, ports);
    lost = lost || IsLostPeer(text);
  }
  if (collision) return v1::HINT_PORT_COLLISION;
  return lost ? v1::HINT_COMMUNICATION : v1::EXIT_HINT_UNSPECIFIED;
}

}  // namespace

v1::ExitHint HintOf(std::string_view log_end, const std::vector<uint32_t>& ports) {
  if (log_end.size() > kHintBytesMax) log_end.remove_prefix(log_end.size() - kHintBytesMax);
  const std::vector<std::string_view> lines = Lines(log_end);
  Exception first;
  bool cut = false;
  if (FirstOfLastChain(lines, &first, &cut)) {
    return cut ? v1::EXIT_HINT_UNSPECIFIED : HintOfException(first, ports);
  }
  std::span<const std::string_view> last(lines);
  last = last.last(std::min(lines.size(), kLinesWithoutTraceback));
  // A C++ exception decides alone, too.
  for (size_t i = 0; i < last.size(); ++i) {
    if (last[i].find("terminate called after throwing") == std::string_view::npos) continue;
    return HintOfLines(last.subspan(i), ports);
  }
  return HintOfLines(last, ports);
}

}  // namespace ddprun::agent
