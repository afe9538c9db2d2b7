// ddprun-keeper SPEC_FD CONTROL_FD: starts and watches the workers of one generation on one node
// (proto/keeper_protocol.md).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/keeper/keeper.h"
#include "launcher/keeper/preloader.h"
#include "launcher/keeper/standby.h"

namespace ddprun::keeper {
namespace {

constexpr int kBadUsage = 2;
constexpr int kInternalError = 1;
constexpr int kSpecFd = 3;
constexpr int kControlFd = 4;
constexpr rlim_t kFilesPerWorker = 9;  // 5 that stay, the rest while it starts
constexpr rlim_t kFilesOfOurOwn = 64;
// Large pipes mean fewer wake-ups for a chatty worker. All together stay well under the 64 MiB that
// Linux lets the pipes of one user have before it makes his new ones tiny.
constexpr size_t kPipeBytesMax = size_t{1} << 20;  // what Linux lets anybody have
constexpr size_t kPipeBytesMin = size_t{64} << 10;
constexpr size_t kPipesBytesMax = size_t{16} << 20;

int Fail(int code, const std::string& text) {
  fprintf(stderr, "ddprun-keeper: %s\n", text.c_str());
  return code;
}

bool ParseFd(const char* text, int* fd) {
  const char* end = text + strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *fd);
  return error == std::errc() && stop == end && *fd >= 0 && fcntl(*fd, F_GETFD) >= 0;
}

// Spec to 3, control socket to 4, standard input from /dev/null; nothing else that the agent held
// stays open here.
bool ArrangeDescriptors(int spec, int control) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int spec_copy = fcntl(spec, F_DUPFD_CLOEXEC, 10);
  const int control_copy = fcntl(control, F_DUPFD_CLOEXEC, 10);
  if (null < 0 || spec_copy < 0 || control_copy < 0) return false;
  if (dup2(null, 0) < 0) return false;
  for (int fd : {1, 2}) {  // a closed one would become some worker's pipe
    if (fcntl(fd, F_GETFD) < 0 && dup2(null, fd) < 0) return false;
  }
  if (dup3(spec_copy, kSpecFd, O_CLOEXEC) < 0) return false;
  if (dup3(control_copy, kControlFd, O_CLOEXEC) < 0) return false;
  closefrom(kControlFd + 1);
  return true;
}

// The whole spec in memory, for as long as the process lives: arguments and environments point into
// it. Closes the descriptor.
std::string_view ReadSpec(int fd, std::string* problem) {
  const Fd file(fd);
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || status.st_size <= 0) {
    *problem = "the spec is empty or no file";
    return {};
  }
  const size_t size = static_cast<size_t>(status.st_size);
  if (size > kSpecBytesMax) {
    *problem = "the spec has " + std::to_string(size) + " bytes, more than 256 MiB";
    return {};
  }
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (bytes == MAP_FAILED) {
    *problem = std::string("cannot map the spec: ") + strerrordesc_np(errno);
    return {};
  }
  return std::string_view(static_cast<const char*>(bytes), size);
}

int PipeBytes(size_t workers) {
  size_t bytes = kPipeBytesMax;
  while (bytes > kPipeBytesMin && bytes * workers > kPipesBytesMax) bytes /= 2;
  return static_cast<int>(bytes);
}

StartContext MakeContext(const Spec& spec) {
  const size_t workers = spec.workers.size();
  StartContext context;
  context.rotation = {static_cast<uint64_t>(spec.log_bytes_max),
                      static_cast<uint64_t>(spec.log_files_kept)};
  context.pipe_bytes = PipeBytes(workers);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  context.hangup_ignored = hangup.sa_handler == SIG_IGN;
  // As the agent had it, also when an earlier call has raised it.
  static const rlimit original = [] {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit;
  }();
  context.open_files = original;
  const rlim_t needed = kFilesOfOurOwn + kFilesPerWorker * workers;
  if (context.open_files.rlim_cur < needed) {
    rlimit raised = context.open_files;
    raised.rlim_cur = raised.rlim_max < needed ? raised.rlim_max : needed;
    setrlimit(RLIMIT_NOFILE, &raised);
  }
  return context;
}

int Keep(int spec_fd) {
  std::string problem;
  Preloader preloader;
  std::string_view bytes = ReadSpec(spec_fd, &problem);
  if (bytes.empty()) return Fail(kBadUsage, problem);
  std::optional<Spec> spec = ParseSpec(bytes, &problem);
  if (!spec) return Fail(kBadUsage, "the spec is wrong: " + problem);
  if (spec->standby) {
    spec_fd = StandBy(kControlFd, spec->workers[0], MakeContext(*spec), &preloader);
    if (spec_fd < 0) return 0;
    bytes = ReadSpec(spec_fd, &problem);
    if (bytes.empty()) return Fail(kBadUsage, problem);
    spec = ParseSpec(bytes, &problem);
    if (!spec || spec->standby) return Fail(kBadUsage, "the spec is wrong: " + problem);
  }
  const StartContext context = MakeContext(*spec);
  Poller poller;
  problem = poller.Open(spec->lease_monotonic ? CLOCK_MONOTONIC : CLOCK_BOOTTIME);
  if (!problem.empty()) return Fail(kInternalError, problem);
  Keeper keeper(&*spec, context, &poller, Fd(kControlFd), std::move(preloader));
  keeper.Run();
  return 0;
}

int Main(int argc, char** argv) {
  int spec_fd = -1;
  int control_fd = -1;
  if (argc != 3 || !ParseFd(argv[1], &spec_fd) || !ParseFd(argv[2], &control_fd)) {
    return Fail(kBadUsage,
                "usage: ddprun-keeper SPEC_FD CONTROL_FD (two open descriptors; ddprun starts it)");
  }
  if (!ArrangeDescriptors(spec_fd, control_fd)) {
    return Fail(kInternalError, std::string("cannot arrange its descriptors: ") + strerror(errno));
  }
  setsid();  // fails only where the agent has made us a leader already
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return Fail(kInternalError, std::string("cannot become a subreaper: ") + strerror(errno));
  }
  return Keep(kSpecFd);
}

}  // namespace
}  // namespace ddprun::keeper

int main(int argc, char** argv) {
  return ddprun::keeper::Main(argc, argv);
}
