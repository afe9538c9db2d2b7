#include "tests/unit/client_keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "common/wire.h"

extern char** environ;

namespace ddprun {
namespace {

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string Unescape(const std::string& text) {
  std::string out(text.size(), '\0');
  out.resize(ddprun_wire_unescape(text.data(), text.size(), out.data(), out.size()));
  return out;
}

std::string Escape(const std::string& text) {
  std::string out(2 * text.size(), '\0');
  out.resize(ddprun_wire_escape(text.data(), text.size(), out.data(), out.size()));
  return out;
}

Packet Parse(const std::string& text) {
  Packet packet;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const size_t equals = text.find('=', at);
    EXPECT_NE(end, std::string::npos) << text;
    EXPECT_LT(equals, end) << text;
    if (end == std::string::npos || equals >= end) break;
    packet[text.substr(at, equals - at)] = Unescape(text.substr(equals + 1, end - equals - 1));
    at = end + 1;
  }
  return packet;
}

// What exec wants: pointers into the texts, then NULL.
std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts->size() + 1);
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string FormatPacket(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string text;
  for (const auto& [key, value] : fields) text += key + "=" + Escape(value) + "\n";
  return text;
}

std::string Base64(const std::string& bytes) {
  std::string out((bytes.size() + 2) / 3 * 4, '\0');
  ddprun_wire_base64_encode(bytes.data(), bytes.size(), out.data(), out.size());
  return out;
}

std::string FromBase64(const std::string& text) {
  std::string out(text.size(), '\0');
  const size_t size = ddprun_wire_base64_decode(text.data(), text.size(), out.data(), out.size());
  EXPECT_NE(size, static_cast<size_t>(-1)) << text;
  out.resize(size == static_cast<size_t>(-1) ? 0 : size);
  return out;
}

FakeKeeper::FakeKeeper() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  fd_ = ends[0];
  worker_fd_ = ends[1];
  page_fd_ = memfd_create("step page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(page_fd_, 4096), 0);
  EXPECT_EQ(fcntl(page_fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  page_ = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, page_fd_, 0);
  EXPECT_NE(page_, MAP_FAILED);
}

FakeKeeper::~FakeKeeper() {
  Close();
  ForgetWorkerEnd();
  close(page_fd_);
  munmap(page_, 4096);
}

void FakeKeeper::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void FakeKeeper::ForgetWorkerEnd() {
  if (worker_fd_ >= 0) close(worker_fd_);
  worker_fd_ = -1;
}

Packet FakeKeeper::Receive(int timeout_ms) {
  pollfd ready = {fd_, POLLIN, 0};
  if (poll(&ready, 1, timeout_ms) != 1) return {};
  std::string text(kDdprunPacketBytesMax, '\0');
  const ssize_t size = recv(fd_, text.data(), text.size(), MSG_DONTWAIT);
  if (size <= 0) return {};
  text.resize(static_cast<size_t>(size));
  return Parse(text);
}

Packet FakeKeeper::ReceiveType(const std::string& type, int timeout_ms) {
  const int64_t deadline = NowMs() + timeout_ms;
  for (;;) {
    const int64_t left = deadline - NowMs();
    Packet packet = Receive(left > 0 ? static_cast<int>(left) : 0);
    if (packet.empty() || packet["TYPE"] == type) return packet;
  }
}

void FakeKeeper::Send(const std::vector<std::pair<std::string, std::string>>& fields) {
  SendRaw(FormatPacket(fields));
}

void FakeKeeper::SendRaw(const std::string& bytes) {
  EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

ddprun_settings FakeKeeper::Settings() const {
  ddprun_settings settings = {};
  settings.socket_fd = worker_fd_;
  settings.page_fd = page_fd_;
  settings.world_size = 1;
  settings.local_world_size = 1;
  settings.generation = 3;
  settings.job_id = "job";
  settings.run_dir = "/nonexistent";
  settings.state_dir = "";
  return settings;
}

LaunchedWorker::LaunchedWorker(void (*change)(ddprun_settings*)) {
  ddprun_settings settings = keeper_.Settings();
  settings.socket_fd = fcntl(keeper_.worker_fd(), F_DUPFD_CLOEXEC, 0);
  if (change != nullptr) change(&settings);
  EXPECT_EQ(ddprun_open(&settings, &handle_), 0) << ddprun_error(nullptr);
  keeper_.ForgetWorkerEnd();
  EXPECT_EQ(keeper_.Receive()["TYPE"], "Hello");
}

LaunchedWorker::~LaunchedWorker() {
  if (handle_ != nullptr) ddprun_close(handle_);
}

TemporaryFolder::TemporaryFolder(const std::string& parent) {
  const std::filesystem::path folder =
      parent.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(parent);
  std::string name = (folder / "ddprun-test-XXXXXX").string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

int Spawn(FakeKeeper& keeper, const std::string& program, const std::vector<std::string>& arguments,
          const std::vector<std::string>& more, int stdout_fd) {
  std::map<std::string, std::string> variables = {{"DDPRUN_SOCKET_FD", "3"},
                                                  {"DDPRUN_PAGE_FD", "4"},
                                                  {"DDPRUN_JOB_ID", "job"},
                                                  {"DDPRUN_GENERATION", "3"},
                                                  {"RANK", "0"},
                                                  {"WORLD_SIZE", "1"},
                                                  {"LOCAL_RANK", "0"},
                                                  {"LOCAL_WORLD_SIZE", "1"}};
  for (const std::string& text : more) {
    variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  for (char** inherited = environ; *inherited != nullptr; ++inherited) {
    const std::string text = *inherited;  // sanitizer options and the like
    variables.try_emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  std::vector<std::string> texts;
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  texts.reserve(variables.size());
  for (const auto& [name, value] : variables) texts.emplace_back(name).append("=").append(value);
  const std::vector<char*> environment = Pointers(&texts);
  const std::vector<char*> argv = Pointers(&words);

  // Out of the way of 3 and 4 first, since dup2 in the child would otherwise overwrite one of them.
  const int socket = fcntl(keeper.worker_fd(), F_DUPFD_CLOEXEC, 20);
  const int page = fcntl(keeper.page_fd(), F_DUPFD_CLOEXEC, 20);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (stdout_fd >= 0) posix_spawn_file_actions_adddup2(&actions, stdout_fd, 1);
  posix_spawn_file_actions_adddup2(&actions, socket, 3);
  posix_spawn_file_actions_adddup2(&actions, page, 4);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environment.data()),
            0)
      << program;
  posix_spawn_file_actions_destroy(&actions);
  close(socket);
  close(page);
  keeper.ForgetWorkerEnd();
  return pid;
}

int WaitFor(int pid, int timeout_ms) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  EXPECT_GE(pidfd, 0);
  pollfd ready = {pidfd, POLLIN, 0};
  const bool ended = poll(&ready, 1, timeout_ms) == 1;
  if (!ended) kill(pid, SIGKILL);
  close(pidfd);
  int status = -1;
  waitpid(pid, &status, 0);
  return ended ? status : -1;
}

}  // namespace ddprun
