// A worker for client_process_test: does what its first argument says and ends with 0 when it went
// as it should. It is linked with libddprun.so and knows only the public header.
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/client/ddprun.h"

namespace {

int Check(bool holds, const char* what) {
  if (!holds) std::fprintf(stderr, "client_child: %s does not hold\n", what);
  return holds ? 0 : 1;
}
#define CHECK_OR_RETURN(condition) \
  if (Check((condition), #condition)) return 1

int Block(ddprun_handle* d) {
  std::printf("never to be seen");  // in the buffer when the process ends
  ddprun_ready(d);
  for (;;) pause();
}

int BlockInAwait(ddprun_handle* d) {
  char byte;
  size_t size;
  ddprun_await(d, "world", "never", &byte, 1, &size, 600);
  return 1;
}

int BlockAtEdge(ddprun_handle* d) {
  char byte;
  size_t size;
  CHECK_OR_RETURN(ddprun_await(d, "world", "go", &byte, 1, &size, 60) == 0);
  ddprun_step_done(d, 1, 0);
  return 7;
}

int ForkedCalls(ddprun_handle* d) {
  char byte;
  size_t size;
  CHECK_OR_RETURN(ddprun_publish(d, "g", "child", "x", 1) == DDPRUN_EPROTO);
  CHECK_OR_RETURN(std::strstr(ddprun_error(d), "forked child") != nullptr);
  CHECK_OR_RETURN(ddprun_await(d, "g", "n", &byte, 1, &size, 60) == DDPRUN_EPROTO);
  CHECK_OR_RETURN(ddprun_ready(d) == DDPRUN_EPROTO);
  CHECK_OR_RETURN(ddprun_step_done(d, 1, 0) == DDPRUN_EPROTO);
  CHECK_OR_RETURN(ddprun_checkpoint_begin(d, 1) == DDPRUN_EPROTO);
  CHECK_OR_RETURN(ddprun_checkpoint_finish(d, 1) == DDPRUN_EPROTO);
  CHECK_OR_RETURN(ddprun_checkpoint_wait(d, 1, 60) == DDPRUN_EPROTO);
  CHECK_OR_RETURN(ddprun_fail(d, DDPRUN_FAIL_ERROR, "m") == DDPRUN_EPROTO);
  CHECK_OR_RETURN(ddprun_finish(d) == DDPRUN_EPROTO);
  ddprun_phase(d, DDPRUN_PHASE_END, "child");
  CHECK_OR_RETURN(ddprun_rank(d) == 0 && ddprun_generation(d) == 3);
  return 0;
}

int Fork(ddprun_handle* d) {
  const pid_t child = fork();
  if (child == 0) _exit(ForkedCalls(d));
  int status = 0;
  waitpid(child, &status, 0);
  ddprun_finish(d);
  return status == 0 ? 0 : 1;
}

int Hygiene(ddprun_handle* d) {
  CHECK_OR_RETURN(getenv("DDPRUN_SOCKET_FD") == nullptr && getenv("DDPRUN_PAGE_FD") == nullptr);
  CHECK_OR_RETURN(fcntl(3, F_GETFD) == FD_CLOEXEC);
  CHECK_OR_RETURN(fcntl(4, F_GETFD) == FD_CLOEXEC);
  CHECK_OR_RETURN(ddprun_is_launched(d) == 1);
  CHECK_OR_RETURN(ddprun_rank(d) == 1 && ddprun_world_size(d) == 4);
  CHECK_OR_RETURN(ddprun_local_rank(d) == 1 && ddprun_local_world_size(d) == 2);
  CHECK_OR_RETURN(ddprun_generation(d) == 3 && std::string(ddprun_job_id(d)) == "job");
  CHECK_OR_RETURN(std::string(ddprun_resume_from(d)) == "/r/checkpoints/step-7");
  CHECK_OR_RETURN(ddprun_resume_step(d) == 7);
  CHECK_OR_RETURN(std::string(ddprun_run_dir(d)) == "/r" && *ddprun_state_dir(d) == '\0');
  ddprun_handle* again = d;
  CHECK_OR_RETURN(ddprun_init(&again) == DDPRUN_EINVAL && again == nullptr);
  return 0;
}

// Every signal must go to the program's own threads.
int Signals(ddprun_handle*) {
  DIR* const tasks = opendir("/proc/self/task");
  int readers = 0;
  while (const dirent* const task = readdir(tasks)) {
    if (task->d_name[0] == '.' || task->d_name == std::to_string(getpid())) continue;
    std::ifstream status("/proc/self/task/" + std::string(task->d_name) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("SigBlk:")) continue;
      const unsigned long long blocked = std::stoull(line.substr(7), nullptr, 16);
      for (int number : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM}) {
        CHECK_OR_RETURN(blocked >> (number - 1) & 1);
      }
      ++readers;
    }
  }
  closedir(tasks);
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  CHECK_OR_RETURN(sigismember(&mine, SIGTERM) == 0);
  CHECK_OR_RETURN(readers >= 1);
  return 0;
}

// A full disk: a small tmpfs of this process alone, or where that is not allowed a limit on sizes.
bool FillableDisk(const char* folder) {
  if (unshare(CLONE_NEWNS) == 0 && mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      mount("tmpfs", folder, "tmpfs", 0, "size=64k") == 0) {
    return true;
  }
  const rlimit limit = {65536, 65536};
  signal(SIGXFSZ, SIG_IGN);
  return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

int DiskFull(ddprun_handle* d) {
  CHECK_OR_RETURN(FillableDisk(ddprun_run_dir(d)));
  const std::vector<char> data(1 << 20, 'x');
  CHECK_OR_RETURN(ddprun_checkpoint_begin(d, 1) == 0);
  CHECK_OR_RETURN(ddprun_checkpoint_write(d, 1, "w.bin", data.data(), data.size()) == DDPRUN_EIO);
  const std::string error = ddprun_error(d);
  CHECK_OR_RETURN(error.find("w.bin.tmp.0: ") != std::string::npos);
  CHECK_OR_RETURN(error.ends_with("No space left on device") || error.ends_with("File too large"));
  DIR* const folder = opendir(ddprun_checkpoint_dir(d));
  int files = 0;
  while (const dirent* const entry = readdir(folder)) files += entry->d_name[0] != '.';
  closedir(folder);
  CHECK_OR_RETURN(files == 0);
  CHECK_OR_RETURN(ddprun_checkpoint_finish(d, 1) == DDPRUN_EIO);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  ddprun_handle* d = nullptr;
  const int error = ddprun_init(&d);
  if (mode == "init") {  // tells what init says
    std::printf("%d %s\n", error, ddprun_error(d));
    return 0;
  }
  if (error != 0) {
    std::fprintf(stderr, "client_child: %s\n", ddprun_error(d));
    return 1;
  }
  const std::map<std::string, std::function<int(ddprun_handle*)>> modes = {
      {"block", Block},     {"await", BlockInAwait}, {"edge", BlockAtEdge},  {"fork", Fork},
      {"hygiene", Hygiene}, {"signals", Signals},    {"disk_full", DiskFull}};
  return modes.at(mode)(d);
}
