// The keeper's log file: rotation loses and splits nothing, the index tells when.
#include "launcher/keeper/log_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "common/log_times.h"
#include "launcher/keeper/log_pump.h"

namespace ddprun::keeper {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kTick = 2 * kLogTimesIntervalNs;

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class LogFileTest : public ::testing::Test {
 protected:
  LogFileTest() {
    std::string name = (fs::temp_directory_path() / "ddprun-log-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
    log_ = folder_ + "/rank0.log";
  }
  ~LogFileTest() override { fs::remove_all(folder_); }

  std::string Numbered(int number) const { return log_ + "." + std::to_string(number); }
  // <LOG>.1, .2 … <LOG> in a row.
  std::string Stream(int first = 1) const {
    std::string all;
    for (int i = first; fs::exists(Numbered(i)); ++i) all += ReadText(Numbered(i));
    return all + ReadText(log_);
  }
  std::vector<LogTime> Times(const std::string& log) const {
    const std::string bytes = ReadText(log + kLogTimesSuffix);
    EXPECT_EQ(bytes.substr(0, kLogTimesHeaderBytes), kLogTimesHeader);
    std::vector<LogTime> times((bytes.size() - kLogTimesHeaderBytes) / sizeof(LogTime));
    memcpy(times.data(), bytes.data() + kLogTimesHeaderBytes, times.size() * sizeof(LogTime));
    return times;
  }

  std::string folder_;
  std::string log_;
};

std::string RandomLines(uint64_t seed, size_t bytes, size_t line_bytes_max) {
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < bytes) {
    const size_t length = random() % line_bytes_max;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 26);
    text += '\n';
  }
  return text;
}

TEST(CutLog, PrefersALineEndInTheLastPartAndElseCutsAtTheLimit) {
  const LogRotation rotation{1000, 0};  // the last 500 bytes may hold the cut
  const std::string plain(2000, 'x');
  EXPECT_EQ(CutLog(rotation, 0, std::string_view(plain).substr(0, 400)).bytes, 400u);
  EXPECT_FALSE(CutLog(rotation, 0, std::string_view(plain).substr(0, 400)).rotate);
  EXPECT_FALSE(CutLog(rotation, 0, std::string_view(plain).substr(0, 999)).rotate);
  EXPECT_TRUE(CutLog(rotation, 0, std::string_view(plain).substr(0, 1000)).rotate);
  EXPECT_EQ(CutLog(rotation, 400, plain).bytes, 600u);
  std::string lines = plain;
  lines[450] = lines[600] = lines[1200] = '\n';
  EXPECT_EQ(CutLog(rotation, 0, lines).bytes, 601u);
  EXPECT_TRUE(CutLog(rotation, 0, lines).rotate);
  EXPECT_EQ(CutLog(rotation, 300, lines).bytes, 601u);  // at 901
  EXPECT_EQ(CutLog(rotation, 500, lines).bytes, 451u);  // at 951; 600 is past the limit
  EXPECT_EQ(CutLog(rotation, 999, plain).bytes, 1u);
}

// L76: rotation by size.
TEST_F(LogFileTest, RotatedFilesInARowAreTheStream) {
  const std::string text = RandomLines(7, 300'000, 300);
  LogFile file;
  ASSERT_EQ(file.Open(log_, {10'000, 0}), 0);
  std::mt19937_64 random(8);
  for (size_t at = 0; at < text.size();) {
    const size_t piece = std::min<size_t>(1 + random() % 9000, text.size() - at);
    ASSERT_EQ(file.Append(std::string_view(text).substr(at, piece), 1), 0u);
    at += piece;
  }
  EXPECT_TRUE(Stream() == text);
  ASSERT_TRUE(fs::exists(Numbered(30)));
  for (int i = 1; fs::exists(Numbered(i)); ++i) {
    const std::string part = ReadText(Numbered(i));
    EXPECT_EQ(part.back(), '\n') << i;
    EXPECT_LE(part.size(), 10'000u);
    EXPECT_GE(part.size(), 5'000u);
  }
  EXPECT_FALSE(fs::exists(log_ + ".new"));
}

TEST_F(LogFileTest, BytesWithoutLineEndsAreCutAtTheLimit) {
  LogFile file;
  ASSERT_EQ(file.Open(log_, {10'000, 0}), 0);
  const std::string text(45'000, '\r');
  ASSERT_EQ(file.Append(text, 1), 0u);
  EXPECT_TRUE(Stream() == text);
  EXPECT_EQ(fs::file_size(Numbered(4)), 10'000u);
}

TEST_F(LogFileTest, OldestRotatedFilesAreRemovedWithTheirIndex) {
  LogFile file;
  ASSERT_EQ(file.Open(log_, {10'000, 3}), 0);
  const std::string text = RandomLines(9, 200'000, 100);
  ASSERT_EQ(file.Append(text, 1), 0u);
  int first = 1;
  while (!fs::exists(Numbered(first))) ++first;
  EXPECT_GT(first, 10);
  EXPECT_TRUE(fs::exists(Numbered(first + 2)));
  EXPECT_FALSE(fs::exists(Numbered(first + 3)));
  EXPECT_FALSE(fs::exists(Numbered(first - 1) + ".times"));
  const std::string kept = Stream(first);
  EXPECT_TRUE(text.ends_with(kept));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 8);
}

TEST_F(LogFileTest, ASecondLifeGoesOnBehindTheFirst) {
  std::string text;
  for (int life = 0; life < 2; ++life) {
    LogFile file;
    ASSERT_EQ(file.Open(log_, {10'000, 0}), 0);
    const std::string part = RandomLines(static_cast<uint64_t>(life), 35'000, 100);
    ASSERT_EQ(file.Append(part, 1), 0u);
    text += part;
  }
  EXPECT_TRUE(Stream() == text);
}

// Crash safety: whatever a crash inside a rotation leaves, the next writer loses nothing.
TEST_F(LogFileTest, LeftoversOfACrashInARotationDoNoHarm) {
  std::ofstream(log_ + ".new") << "";
  std::ofstream(Numbered(1)) << "first\n";  // renamed, and <LOG> not made anew
  LogFile file;
  ASSERT_EQ(file.Open(log_, {10'000, 0}), 0);
  const std::string text = RandomLines(1, 25'000, 100);
  ASSERT_EQ(file.Append(text, 1), 0u);
  EXPECT_TRUE(Stream() == "first\n" + text);
}

TEST_F(LogFileTest, ARotationThatFailsIsToldOnceAndLosesNothing) {
  LogFile file;
  ASSERT_EQ(file.Open(log_, {10'000, 0}), 0);
  fs::create_directory(log_ + ".new");  // the new file cannot be made
  const std::string text = RandomLines(2, 25'000, 100);
  ASSERT_EQ(file.Append(text, 1), 0u);
  EXPECT_EQ(file.TakeRotationError(), EISDIR);
  ASSERT_EQ(file.Append(text, 1), 0u);
  EXPECT_EQ(file.TakeRotationError(), 0);
  EXPECT_TRUE(ReadText(log_) == text + text);
  fs::remove(log_ + ".new");
  ASSERT_EQ(file.Append(text, 1), 0u);
  EXPECT_TRUE(Stream() == text + text + text);
  EXPECT_TRUE(fs::exists(Numbered(1)));
}

// What the kernel moves and what is copied end up in one order, over every cut.
TEST_F(LogFileTest, MovedAndCopiedBytesAreOneStream) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  Fd input(ends[1]);
  LogFile file;
  ASSERT_EQ(file.Open(log_, {300'000, 0}), 0);
  LogPump pump{Fd{ends[0]}, std::move(file)};
  const std::string text = RandomLines(3, 2'000'000, 3000);
  std::string shown;
  for (size_t at = 0, turn = 0; at < text.size(); ++turn) {
    const ssize_t size =
        write(input.get(), text.data() + at, std::min<size_t>(50'000, text.size() - at));
    ASSERT_GT(size, 0);
    at += static_cast<size_t>(size);
    const bool want = turn % 3 == 0;
    std::string_view chunk;
    size_t moved = 0;
    for (size_t left = static_cast<size_t>(size); left > 0; left -= moved) {
      ASSERT_EQ(pump.PumpOnce(1 << 20, want, &chunk, &moved), LogPump::Outcome::kData);
      EXPECT_EQ(chunk.size(), want ? moved : 0);
    }
    EXPECT_EQ(pump.PumpOnce(1 << 20, want, &chunk, &moved), LogPump::Outcome::kEmpty);
  }
  input.Reset();
  std::string_view chunk;
  size_t moved = 0;
  EXPECT_EQ(pump.PumpOnce(1 << 20, false, &chunk, &moved), LogPump::Outcome::kEnd);
  EXPECT_TRUE(Stream() == text);
  EXPECT_TRUE(fs::exists(Numbered(6)));
}

TEST_F(LogFileTest, WhoMakesItShorterGetsWhatFollowsAtItsNewEnd) {
  LogFile file;
  ASSERT_EQ(file.Open(log_, {}), 0);
  file.Append("old\n", 1);
  fs::resize_file(log_, 0);
  file.Append("new\n", 1);
  EXPECT_EQ(ReadText(log_), "new\n");
}

TEST_F(LogFileTest, IndexSaysFromWhichOffsetOnAndAtMostOnceAnInterval) {
  LogFile file;
  ASSERT_EQ(file.Open(log_, {}), 0);
  file.Append("aaaa", kTick);
  file.Append("bb", kTick + 1);  // within the interval
  file.Append("cc", 2 * kTick);
  file.Append("d", kTick / 2);  // the clock was set back: told as it is
  const std::vector<LogTime> times = Times(log_);
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[0].time_ns, kTick);
  EXPECT_EQ(times[0].offset, 0u);
  EXPECT_EQ(times[1].time_ns, 2 * kTick);
  EXPECT_EQ(times[1].offset, 6u);
  EXPECT_EQ(times[2].time_ns, kTick / 2);
  EXPECT_EQ(times[2].offset, 8u);
}

TEST_F(LogFileTest, IndexIsRotatedWithItsLog) {
  LogFile file;
  ASSERT_EQ(file.Open(log_, {10'000, 0}), 0);
  const std::string line = std::string(99, 'x') + "\n";
  int64_t now = 0;
  for (int i = 0; i < 250; ++i) ASSERT_EQ(file.Append(line, now += kTick), 0u);
  ASSERT_TRUE(fs::exists(Numbered(2)));
  int64_t expected = 0;
  std::vector<std::string> logs;
  for (int i = 1; fs::exists(Numbered(i)); ++i) logs.push_back(Numbered(i));
  logs.push_back(log_);
  for (const std::string& log : logs) {
    uint64_t offset = 0;
    for (const LogTime& time : Times(log)) {
      EXPECT_EQ(time.time_ns, expected += kTick);
      EXPECT_EQ(time.offset, offset);
      offset += 100;
    }
    EXPECT_EQ(offset, fs::file_size(log));
  }
  EXPECT_EQ(expected, now);
}

TEST(LogTimes, IntervalDoublesSoThatAnIndexStaysSmall) {
  EXPECT_EQ(LogTimesInterval(0), kLogTimesIntervalNs);
  EXPECT_EQ(LogTimesInterval(kLogTimesPerInterval), 2 * kLogTimesIntervalNs);
  // A week of records, as many as are allowed.
  uint64_t records = 0;
  for (int64_t t = 0; t < int64_t{604'800} * 1'000'000'000; t += LogTimesInterval(records))
    ++records;
  EXPECT_LT(records * sizeof(LogTime), 40u << 20);
}

// S19: a disk that is full blocks nobody and is counted.
TEST(LogPump, FullFileIsCountedAndToldOnce) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  Fd input(ends[1]);
  LogFile file;
  ASSERT_EQ(file.Open("/dev/full", {}), 0);
  LogPump pump{Fd{ends[0]}, std::move(file)};
  std::string_view chunk;
  size_t moved = 0;
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_EQ(write(input.get(), "12345", 5), 5);
    EXPECT_EQ(pump.PumpOnce(100, false, &chunk, &moved), LogPump::Outcome::kData);
    EXPECT_EQ(pump.bytes_lost(), 5 * i);
    EXPECT_EQ(pump.TakeNews(), i == 1 ? LogPump::News::kCannotWrite : LogPump::News::kNone);
  }
  EXPECT_EQ(pump.last_error(), ENOSPC);
}

}  // namespace
}  // namespace ddprun::keeper
