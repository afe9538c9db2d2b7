#include "tests/process/keeper_harness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace ddprun::keeper_test {
namespace {

constexpr const char* kMarkName = "KEEPER_TEST_MARK";

int LeftMs(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

bool IsReadable(int fd, Clock::time_point deadline) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, LeftMs(deadline)) == 1;
}

int OpenPidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

std::string BinaryFolder() {
  const char* folder = getenv("DDPRUN_BIN");
  if (folder != nullptr) return folder;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin";
}

std::string MakeFolder() {
  std::string path = std::filesystem::temp_directory_path() / "ddprun-keeper-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) abort();
  return path;
}

}  // namespace

KeeperProcess::KeeperProcess(KeeperOptions options)
    : options_(std::move(options)), folder_(MakeFolder()) {
  mark_ = std::string(kMarkName) + "=" + folder_;
  Spawn();
}

KeeperProcess::~KeeperProcess() {
  CloseControl();
  if (!reaped_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (pid_t pid : ListMarked()) kill(pid, SIGKILL);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string KeeperProcess::MakeSpec() const {
  std::string spec;
  const auto add = [&spec](const std::string& line) { spec.append(line).push_back('\0'); };
  add("JOB=test");
  add("GENERATION=1");
  add("NODE=here");
  add("GRACE_MS=" + std::to_string(options_.grace_ms));
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const int64_t until_ns =
      now.tv_sec * 1'000'000'000LL + now.tv_nsec + options_.lease_ms * 1'000'000LL;
  add("LEASE_UNTIL_NS=" + std::to_string(options_.lease_ms == 0 ? 0 : until_ns));
  for (const std::string& key : options_.further) add(key);
  add("HANG_MS=" + std::to_string(options_.hang_ms));
  add(std::string("FOREGROUND=") + (options_.foreground ? "1" : "0"));
  for (size_t rank = 0; rank < options_.workers.size(); ++rank) {
    const WorkerOptions& worker = options_.workers[rank];
    add("WORKER=" + std::to_string(rank));
    for (const std::string& argument : worker.arguments) add("ARG=" + argument);
    add("ENV=PATH=/usr/local/bin:/usr/bin:/bin");
    add("ENV=" + mark_);
    for (const std::string& variable : worker.environment) add("ENV=" + variable);
    if (!worker.directory.empty()) add("CWD=" + worker.directory);
    add("LOG=" + LogPath(rank));
    add(std::string("CONSOLE=") + (worker.console ? "1" : "0"));
    if (!worker.cpus.empty()) add("CPUS=" + worker.cpus);
  }
  return spec;
}

void KeeperProcess::Spawn() {
  const std::string spec = MakeSpec();
  const int spec_fd = memfd_create("spec", 0);
  ASSERT_EQ(write(spec_fd, spec.data(), spec.size()), static_cast<ssize_t>(spec.size()));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  control_ = ends[0];
  const std::string program = BinaryFolder() + "/ddprun-keeper";
  pid_ = fork();
  ASSERT_GE(pid_, 0);
  if (pid_ == 0) {
    fcntl(ends[1], F_SETFD, 0);
    if (options_.before_exec) options_.before_exec();
    execl(program.c_str(), "ddprun-keeper", std::to_string(spec_fd).c_str(),
          std::to_string(ends[1]).c_str(), nullptr);
    perror(program.c_str());
    _exit(127);
  }
  close(ends[1]);
  close(spec_fd);
}

bool KeeperProcess::Receive(Clock::time_point deadline) {
  if (control_ < 0 || !IsReadable(control_, deadline)) return false;
  auto bytes = std::make_shared<std::string>(kControlPacketBytesMax, '\0');
  const ssize_t size = recv(control_, bytes->data(), bytes->size(), 0);
  if (size <= 0) return false;
  bytes->resize(static_cast<size_t>(size));
  bytes->shrink_to_fit();
  std::string problem;
  std::optional<Packet> packet = Packet::Parse(*bytes, &problem);
  EXPECT_TRUE(packet) << problem << ": " << *bytes;
  if (packet) messages_.push_back({bytes, *packet, Clock::now()});
  return true;
}

Message KeeperProcess::Await(std::string_view type, int64_t rank, Milliseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  for (size_t next = 0;; ++next) {
    while (next == messages_.size()) {
      if (Receive(deadline)) continue;
      std::string seen;
      for (const Message& message : messages_) {
        if (seen.size() < 1000) seen += std::string(message.packet.type()) + " ";
      }
      ADD_FAILURE() << "no " << type << " of rank " << rank << " came; seen: " << seen;
      const auto nothing = std::make_shared<std::string>("TYPE=Nothing\n");
      return {nothing, *Packet::Parse(*nothing, nullptr), Clock::now()};
    }
    const Message& message = messages_[next];
    if (message.packet.type() == type && (rank < 0 || message.Integer("RANK") == rank)) {
      return message;
    }
  }
}

Message KeeperProcess::AwaitFromWorker(std::string_view type, int64_t rank) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  for (size_t next = 0;; ++next) {
    while (next == messages_.size()) {
      if (Receive(deadline)) continue;
      return Await(std::string("Packet ") + std::string(type), rank, Milliseconds(0));  // fails
    }
    const Message& message = messages_[next];
    if (message.packet.type() != "Packet" || message.Integer("RANK") != rank) continue;
    const auto inner = std::make_shared<std::string>(message.Body());
    const std::optional<Packet> packet = Packet::Parse(*inner, nullptr);
    if (packet && packet->type() == type) return {inner, *packet, message.received};
  }
}

void KeeperProcess::AwaitConsole(int64_t rank, std::string_view text) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (Console(rank).find(text) == std::string::npos) {
    ASSERT_TRUE(Receive(deadline)) << "'" << text << "' did not come; output: " << Console(rank);
  }
}

void KeeperProcess::AwaitGone(Milliseconds patience) {
  Await("Gone", -1, patience);
  AwaitExit(patience);
  EXPECT_EQ(exit_code_, 0);
  EXPECT_FALSE(Receive(Clock::now() + patience)) << "a packet came after Gone";
  if (Count("Unkillable") > 0) return;
  EXPECT_EQ(Count("Exited") + Count("StartFailed"), options_.workers.size()) << "one end each";
  EXPECT_EQ(Count("Started"), Count("Exited"));
}

size_t KeeperProcess::Count(std::string_view type) const {
  size_t count = 0;
  for (const Message& message : messages_) count += message.packet.type() == type ? 1 : 0;
  return count;
}

size_t KeeperProcess::Position(std::string_view type, int64_t rank) const {
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (messages_[i].packet.type() == type && messages_[i].Integer("RANK") == rank) return i;
  }
  ADD_FAILURE() << "no " << type << " of rank " << rank;
  return 0;
}

std::string KeeperProcess::Console(int64_t rank) const {
  std::string text;
  for (const Message& message : messages_) {
    if (message.packet.type() == "Console" && message.Integer("RANK") == rank) {
      text += message.Body();
    }
  }
  return text;
}

void KeeperProcess::Send(const std::string& packet) {
  ASSERT_EQ(send(control_, packet.data(), packet.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(packet.size()));
}

void KeeperProcess::SendToWorker(int64_t rank, const std::string& packet) {
  Send(PacketWriter("Packet").Integer("RANK", rank).FinishWithBody(packet));
}

void KeeperProcess::Stop(std::string_view mode, int grace_ms) {
  PacketWriter packet("Stop");
  packet.Text("MODE", mode).Text("REASON", "the test says so");
  if (grace_ms >= 0) packet.Integer("GRACE_MS", grace_ms);
  Send(packet.Finish());
}

void KeeperProcess::CloseControl() {
  if (control_ >= 0) close(control_);
  control_ = -1;
}

int KeeperProcess::AwaitExit(Milliseconds patience) {
  if (reaped_) return exit_code_;
  if (!AwaitDeath(pid_, patience)) {
    ADD_FAILURE() << "the keeper did not end";
    return -1;
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

std::vector<pid_t> KeeperProcess::ListMarked() const {
  std::vector<pid_t> marked;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = ReadFile(entry.path() / "environ");  // empty for a zombie
    if (environment.find(mark_) != std::string::npos) marked.push_back(std::stoi(name));
  }
  return marked;
}

void KeeperProcess::ExpectNothingLeft(Milliseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  for (;;) {
    const std::vector<pid_t> marked = ListMarked();
    if (marked.empty()) return;
    for (pid_t pid : marked) {
      if (AwaitDeath(pid, Milliseconds(LeftMs(deadline)))) continue;
      ADD_FAILURE() << "still there: " << pid << " "
                    << ReadFile("/proc/" + std::to_string(pid) + "/cmdline");
      return;
    }
  }
}

std::string KeeperProcess::LogPath(size_t rank) const {
  const std::string& path = options_.workers[rank].log;
  return path.empty() ? folder_ + "/rank" + std::to_string(rank) + ".log" : path;
}

std::string KeeperProcess::Log(size_t rank) const {
  return ReadFile(LogPath(rank));
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string FakeWorker() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "keeper_fake_worker";
}

bool AwaitDeath(pid_t pid, Milliseconds patience) {
  const int pidfd = OpenPidfd(pid);
  if (pidfd < 0) return true;
  const bool dead = IsReadable(pidfd, Clock::now() + patience);
  close(pidfd);
  return dead;
}

int64_t StatusNumber(pid_t pid, const std::string& key) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(key + ":", 0) == 0) return std::stoll(line.substr(key.size() + 1));
  }
  return 0;
}

WorkerOptions Shell(const std::string& script, bool console) {
  return {.arguments = {"bash", "-c", script}, .console = console};
}

WorkerOptions Fake(std::vector<std::string> arguments, bool console) {
  arguments.insert(arguments.begin(), FakeWorker());
  return {.arguments = std::move(arguments), .console = console};
}

}  // namespace ddprun::keeper_test
