// A running job whose coordinator is flooded by strangers: it ends right, and memory stays bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <sstream>

#include "absl/strings/match.h"
#include "launcher/net/first_bytes.h"
#include "launcher/net/limits.h"
#include "tests/process/door_harness.h"
#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

constexpr int kConnections = 10000;
constexpr int kHeld = 400;  // more than one address may have without saying who it is
constexpr long kGrowthKilobytesMax = 96 * 1024;

long ResidentKilobytes(pid_t pid) {
  std::istringstream status(ReadText("/proc/" + std::to_string(pid) + "/status"));
  std::string word;
  while (status >> word) {
    if (word == "VmRSS:") {
      long kilobytes = 0;
      status >> kilobytes;
      return kilobytes;
    }
  }
  return 0;
}

int PortOf(const std::string& output) {
  const std::string marker = "listening on ";
  const size_t at = output.find(marker);
  if (at == std::string::npos) return 0;
  const size_t end = output.find('\n', at);
  return std::stoi(output.substr(output.rfind(':', end) + 1));
}

std::string Garbage(std::mt19937& random, int kind) {
  std::string bytes(1 + random() % 2000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  switch (kind) {
    case 0:
      return "";  // connects and goes
    case 1:
      return "GET / HTTP/1.1\r\n\r\n";
    case 2:
      return std::string("\x16\x03\x01\x02\x00", 5) + bytes;
    case 3:
      return std::string(net::kHttp2Preface) + bytes;
    default:
      return bytes;
  }
}

TEST(Flood, TenThousandStrangersDoNotDisturbAJob) {
  Launch launch(
      Mode::kApart, 1,
      {"--", "/bin/sh", "-c", "while [ ! -e $DDPRUN_RUN_DIR/go-on ]; do sleep 0.1; done"});
  ASSERT_GT(launch.WorkerPid(1, 0), 0);
  const int port = PortOf(ReadText(launch.folder() + "/output"));
  ASSERT_GT(port, 0);
  const long before = ResidentKilobytes(launch.pid());
  std::vector<int> held;
  for (int i = 0; i < kHeld; ++i) {
    held.push_back(ConnectRaw(port));
  }
  std::mt19937 random(3);
  int refused_by_kernel = 0;
  for (int i = 0; i < kConnections; ++i) {
    const int fd = ConnectRaw(port);
    if (fd < 0) {
      ++refused_by_kernel;
      continue;
    }
    const std::string bytes = Garbage(random, i % 5);
    // It may have been cut already.
    if (!bytes.empty()) (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
  }
  EXPECT_EQ(refused_by_kernel, 0);
  EXPECT_LT(ResidentKilobytes(launch.pid()) - before, kGrowthKilobytesMax);
  EXPECT_TRUE(launch.WaitFor(
      [](const Launch::Json& event) {
        return event["event"] == "join_refused" && event["kind"] == "malformed";
      },
      20));
  for (int fd : held) close(fd);
  std::ofstream(launch.run_dir() + "/go-on") << "\n";
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  size_t refusals = 0;
  for (const Launch::Json& event : launch.Events()) {
    EXPECT_NE(event["event"], "node_lost");
    refusals += event["event"] == "join_refused" ? 1 : 0;
  }
  EXPECT_LT(refusals, 200U);  // one a second and kind
}

// A frame of HTTP/2.
std::string Frame(char type, char stream, const std::string& body) {
  std::string frame = {static_cast<char>(body.size() >> 16),
                       static_cast<char>(body.size() >> 8),
                       static_cast<char>(body.size()),
                       type,
                       0,
                       0,
                       0,
                       0,
                       stream};
  return frame + body;
}

// Sends until the other side closes, or so many bytes are sent; returns how many were.
size_t SendUntilCut(int fd, const std::string& begin, const std::string& again, size_t bytes) {
  const timeval patience = {20, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  size_t sent = 0;
  for (const std::string* next = &begin; sent < bytes; next = &again) {
    const ssize_t n = send(fd, next->data(), next->size(), MSG_NOSIGNAL);
    if (n <= 0) return sent;
    sent += static_cast<size_t>(n);
  }
  return sent;
}

// gRPC keeps a header until its end has come, what it answers to pings until it is read, and a
// report of a kilobyte of each ping too many: without a bound these are gigabytes.
constexpr long kTalkKilobytesMax = 384 * 1024;

TEST(Flood, AStrangerThatSaysTooMuchIsCut) {
  Launch launch(
      Mode::kApart, 1,
      {"--", "/bin/sh", "-c", "while [ ! -e $DDPRUN_RUN_DIR/go-on ]; do sleep 0.1; done"});
  ASSERT_GT(launch.WorkerPid(1, 0), 0);
  const int port = PortOf(ReadText(launch.folder() + "/output"));
  ASSERT_GT(port, 0);
  const long before = ResidentKilobytes(launch.pid());
  const std::string preface = std::string(net::kHttp2Preface) + Frame(4, 0, "");
  const std::string endless =
      preface + Frame(1, 1, std::string("\x00\x01", 2) + "a\x7f\xff\xff\xff\x07");
  const std::string more = Frame(9, 1, std::string(16000, 'a'));
  std::string pings;
  for (int i = 0; i < 8000; ++i) pings += Frame(6, 0, "12345678");
  constexpr size_t kMuch = size_t{64} << 20;
  for (int i = 0; i < 3; ++i) {
    int fd = ConnectRaw(port);
    EXPECT_LT(SendUntilCut(fd, endless, more, kMuch), kMuch);
    close(fd);
    fd = ConnectRaw(port);
    EXPECT_LT(SendUntilCut(fd, preface, pings, kMuch), kMuch);
    close(fd);
  }
  // Frames of a type that nobody knows, which gRPC itself would skip for ever.
  const int alone = ConnectRaw(port);
  const std::string unknown = Frame(0x20, 0, std::string(16000, 'a'));
  EXPECT_LT(SendUntilCut(alone, preface, unknown, kMuch), kMuch);
  close(alone);
  // Each alone says little enough.
  std::vector<int> several;
  for (size_t i = 0; i < 40; ++i) {
    several.push_back(ConnectRaw(port));
    SendUntilCut(several.back(), endless, more, net::kStrangersBytesMax / 30);
  }
  EXPECT_TRUE(WaitUntil(
      [&] { return absl::StrContains(ReadText(launch.folder() + "/output"), "bytes together"); },
      20));
  for (int fd : several) close(fd);
  EXPECT_LT(ResidentKilobytes(launch.pid()) - before, kTalkKilobytesMax);
  std::ofstream(launch.run_dir() + "/go-on") << "\n";
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_THAT(finished.output, ::testing::HasSubstr("bytes without proving the job's secret"));
}

}  // namespace
}  // namespace ddprun::testing
