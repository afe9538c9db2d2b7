// A worker for the keeper's tests: speaks the worker protocol with bare system calls, and
// misbehaves in the ways that its first argument names.
#include "tests/process/keeper_fake_worker.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>

namespace ddprun::keeper_test {
namespace {

constexpr unsigned kCometSecondsMax =
    15;  // should the keeper fail, the test's processes end by themselves

int g_socket = -1;

void Say(const std::string& packet) {
  if (send(g_socket, packet.data(), packet.size(), MSG_NOSIGNAL) < 0) {
    perror("send");
    exit(99);
  }
}

void Hello() {
  Say("TYPE=Hello\nPROTOCOL=1\nPID=" + std::to_string(getpid()) + "\n");
}

void Progress(int step) {
  Say("TYPE=Progress\nSTEP=" + std::to_string(step) + "\n");
}

void WriteAll(const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t size = write(1, bytes.data() + done, bytes.size() - done);
    if (size < 0) exit(98);
    done += static_cast<size_t>(size);
  }
}

[[noreturn]] void PauseForEver() {
  for (;;) pause();
}

// Says Hello and leaves with code 3 when it is told to abort.
int ObeyAbort(char**) {
  Hello();
  Say("TYPE=Ready\n");
  signal(SIGTERM, SIG_IGN);
  char buffer[65536];
  for (;;) {
    const ssize_t size = recv(g_socket, buffer, sizeof buffer, 0);
    if (size <= 0) return 4;
    if (std::string(buffer, static_cast<size_t>(size)).rfind("TYPE=Abort\n", 0) == 0) return 3;
  }
}

int IgnoreEverything(char**) {
  signal(SIGTERM, SIG_IGN);
  Hello();
  PauseForEver();
}

// Many packets and lines, then SIGKILL by its own hand.
int Burst(char** arguments) {
  const int count = atoi(arguments[0]);
  Hello();
  for (int step = 1; step <= count; ++step) {
    Progress(step);
    WriteAll("line " + std::to_string(step) + "\n");
  }
  kill(getpid(), SIGKILL);
  return 0;
}

// A child that inherited the socket speaks in vain.
int ChildSpeaks(char**) {
  Hello();
  if (fork() == 0) {
    Progress(666);
    Say("TYPE=Finished\n");
    _exit(0);
  }
  wait(nullptr);
  Progress(1);
  return 0;
}

int VoidPackets(char**) {
  Progress(7);  // before Hello
  Hello();
  Say("no packet at all");
  Say("TYPE=Progress\nEPOCH=1\n");  // lacks STEP
  Say(std::string());
  Progress(8);
  return 0;
}

int WritePage(char**) {
  const int fd = atoi(getenv("DDPRUN_PAGE_FD"));
  if (ftruncate(fd, 0) == 0 || ftruncate(fd, 8192) == 0) return 1;  // it is sealed
  auto* page = static_cast<char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  const auto put = [page](size_t offset, auto value) {
    memcpy(page + offset, &value, sizeof value);
  };
  put(0, uint32_t{0x50444450});
  put(4, uint32_t{1});
  put(12, uint32_t{3});
  put(16, uint64_t{41});
  put(40, uint64_t{18});
  put(48, uint64_t{17});
  strcpy(page + 56, "AllReduce");
  strcpy(page + 120, "layer 4\nof 5");
  if (getenv("LEAVE_INSIDE") != nullptr) put(8, uint32_t{7});  // the writer dies in the middle
  abort();
}

// Says Hello, completes a step, enters a collective and spins there for ever.
int PageThenSpin(char**) {
  const int fd = atoi(getenv("DDPRUN_PAGE_FD"));
  auto* page = static_cast<char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  const auto put = [page](size_t offset, auto value) {
    memcpy(page + offset, &value, sizeof value);
  };
  put(4, uint32_t{1});
  put(12, uint32_t{3});
  put(16, uint64_t{41});
  put(40, uint64_t{7});
  put(48, uint64_t{6});
  strcpy(page + 56, "all_reduce");
  put(0, uint32_t{0x50444450});
  Hello();
  for (;;) asm volatile("");
}

int ListDescriptors(char**) {
  std::map<int, std::string> targets;
  DIR* dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) {
    const int fd = atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fd == dirfd(dir)) continue;
    char target[256] = {};
    if (readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1) > 0) targets[fd] = target;
  }
  closedir(dir);
  for (const auto& [fd, target] : targets) printf("%d %s\n", fd, target.c_str());
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  printf("files %ld\n", static_cast<long>(files.rlim_cur));
  printf("leader %d %d\n", getpgrp() == getpid(), getsid(0) == getppid());
  return 0;
}

int Random(char** arguments) {
  WriteAll(RandomBytes(strtoull(arguments[0], nullptr, 10), strtoull(arguments[1], nullptr, 10)));
  return 0;
}

// One line without end, `size` bytes; or `\r` updates only.
int LongLine(char** arguments) {
  WriteAll(std::string(strtoull(arguments[0], nullptr, 10), 'x'));
  return 0;
}

int CarriageReturns(char** arguments) {
  for (int i = 0; i < atoi(arguments[0]); ++i) WriteAll("\rstep " + std::to_string(i));
  return 0;
}

// Sends back what it is told, as the KIND of a Failed packet.
int Echo(char** arguments) {
  Hello();
  char buffer[65536];
  for (int left = atoi(arguments[0]); left > 0; --left) {
    const ssize_t size = recv(g_socket, buffer, sizeof buffer, 0);
    if (size <= 0) return 1;
    const std::string text(buffer, static_cast<size_t>(size));
    Say("TYPE=Failed\nKIND=error\nMESSAGE=" + text.substr(0, text.find('\n')) + "\n");
  }
  return 0;
}

// A process that is never the same for long: each forks, leaves its session and ends. Hard to hit
// by pid or by group.
int Comet(char** arguments) {
  const int tails = atoi(arguments[0]);
  const time_t end = time(nullptr) + time_t{kCometSecondsMax};
  for (int i = 0; i < tails; ++i) {
    if (fork() != 0) continue;
    while (time(nullptr) < end) {
      setsid();
      if (fork() > 0) _exit(0);
    }
    _exit(0);
  }
  Hello();
  Say("TYPE=Ready\n");
  PauseForEver();
}

// A tree of processes, each with four children, every other one a session of its own; all ignore
// TERM.
int Forest(char** arguments) {
  const int depth = atoi(arguments[0]);
  signal(SIGTERM, SIG_IGN);
  Hello();
  int level = 0;
  for (int child = 0; level < depth && child < 4; ++child) {
    if (fork() != 0) continue;
    ++level;
    if (child % 2 == 0) setsid();
    child = -1;
  }
  if (level == 0) Say("TYPE=Ready\n");
  PauseForEver();
}

// Needs a setuid copy of this program: becomes root, so that an ordinary keeper may not kill it.
int BecomeRoot(char**) {
  alarm(kCometSecondsMax);  // should the test itself be killed
  if (setresuid(0, 0, 0) != 0) return 97;
  Hello();
  Say("TYPE=Ready\n");
  PauseForEver();
}

int Signals(char**) {
  FILE* status = fopen("/proc/self/status", "r");
  char line[256];
  while (fgets(line, sizeof line, status) != nullptr) {
    if (strncmp(line, "Sig", 3) == 0) fputs(line, stdout);
  }
  fclose(status);
  return 0;
}

struct Mode {
  const char* name;
  int (*run)(char** arguments);
};
constexpr Mode kModes[] = {
    {"obey-abort", ObeyAbort},
    {"ignore", IgnoreEverything},
    {"burst", Burst},
    {"child-speaks", ChildSpeaks},
    {"void-packets", VoidPackets},
    {"page", WritePage},
    {"page-then-spin", PageThenSpin},
    {"fds", ListDescriptors},
    {"random", Random},
    {"long-line", LongLine},
    {"returns", CarriageReturns},
    {"echo", Echo},
    {"comet", Comet},
    {"forest", Forest},
    {"become-root", BecomeRoot},
    {"signals", Signals},
};

int Main(int argc, char** argv) {
  const char* socket_fd = getenv("DDPRUN_SOCKET_FD");
  g_socket = socket_fd != nullptr ? atoi(socket_fd) : -1;
  for (const Mode& mode : kModes) {
    if (argc >= 2 && strcmp(mode.name, argv[1]) == 0) return mode.run(argv + 2);
  }
  fprintf(stderr, "usage: keeper_fake_worker MODE [ARGUMENTS]\n");
  return 2;
}

}  // namespace
}  // namespace ddprun::keeper_test

int main(int argc, char** argv) {
  return ddprun::keeper_test::Main(argc, argv);
}
