// One rank's log as `ddprun logs` reads it: through rotated files that the keeper's own LogFile
// wrote, with their index; where to begin; files that are not as they should be.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "common/log_times.h"
#include "launcher/keeper/log_file.h"
#include "launcher/logs/rank_stream.h"

namespace ddprun::logs {
namespace {

namespace fs = std::filesystem;
using keeper::LogFile;

constexpr int64_t kTick = 2 * kLogTimesIntervalNs;

class LogsStreamTest : public ::testing::Test {
 protected:
  LogsStreamTest() {
    std::string name = (fs::temp_directory_path() / "ddprun-logs-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
    log_ = folder_ + "/rank3.log";
  }
  ~LogsStreamTest() override { fs::remove_all(folder_); }

  RankFiles Files() const { return ListRanks(folder_).at(3); }
  void Open(uint64_t bytes_max, uint64_t kept = 0) {
    ASSERT_EQ(writer_.Open(log_, {bytes_max, kept}), 0);
  }
  // Line n is written at n ticks.
  void WriteLines(int first, int last) {
    for (int i = first; i <= last; ++i) {
      ASSERT_EQ(writer_.Append("line " + std::to_string(i) + "\n", i * kTick), 0u);
    }
  }
  static std::string Take(RankStream* stream, bool at_end = true) {
    std::string all;
    while (const Piece* piece = stream->Peek(at_end)) {
      all += piece->bytes;
      stream->Pop();
    }
    return all;
  }
  std::string From(Place place) const {
    RankStream stream(Files(), place);
    return Take(&stream);
  }
  // Of one look at the folder: a rotation between two would be passed over.
  RankStream FromTheBeginning() {
    const RankFiles files = Files();
    return RankStream(files, Beginning(files));
  }
  static std::string Lines(int first, int last) {
    std::string all;
    for (int i = first; i <= last; ++i) all += "line " + std::to_string(i) + "\n";
    return all;
  }

  std::string folder_;
  std::string log_;
  LogFile writer_;
};

TEST_F(LogsStreamTest, OnlyLogsAreTaken) {
  for (const char* name : {"rank3.log", "rank3.log.2", "rank3.log.10", "rank3.log.times",
                           "rank3.log.2.times", "rank3.log.new", "rank3.log.0", "rank3.log2",
                           "rank.log", "rankx.log", "ranks.txt", "rank4.log.1"}) {
    std::ofstream(folder_ + "/" + name) << "x";
  }
  const auto ranks = ListRanks(folder_);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks.at(3).numbers, (std::vector<uint64_t>{2, 10}));
  EXPECT_EQ(ranks.at(4).numbers, (std::vector<uint64_t>{1}));
}

TEST_F(LogsStreamTest, EachLineHasItsTimeOverRotatedFiles) {
  Open(5000);
  WriteLines(1, 3000);
  ASSERT_GT(Files().numbers.size(), 5u);
  RankStream stream = FromTheBeginning();
  for (int i = 1; i <= 3000; ++i) {
    const Piece* piece = stream.Peek(false);
    ASSERT_NE(piece, nullptr);
    ASSERT_EQ(piece->bytes, "line " + std::to_string(i) + "\n");
    ASSERT_EQ(piece->time_ns, i * kTick);
    stream.Pop();
  }
  EXPECT_EQ(stream.Peek(true), nullptr);
}

// Following while the writer rotates, and removes the oldest.
TEST_F(LogsStreamTest, AReaderFollowsThroughRotations) {
  Open(5000, 2);
  WriteLines(1, 10);
  RankStream stream = FromTheBeginning();
  std::string seen = Take(&stream, false);
  for (int i = 11; i < 2000; i += 150) {
    WriteLines(i, i + 149);
    seen += Take(&stream, false);
  }
  EXPECT_TRUE(seen == Lines(1, 2110)) << seen.size();
}

// A rotation may come at any moment between a reader's looks: at the folder, at a file, at its end.
TEST_F(LogsStreamTest, AReaderThatBeginsAtAnyMomentLosesNothing) {
  constexpr int kLines = 1000;
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove(entry);
    writer_ = LogFile();
    Open(600);
    std::atomic<int> lines = 0;
    std::thread writer([&] {
      while (lines < kLines) {
        WriteLines(lines + 1, lines + 1);
        ++lines;
      }
    });
    const int begin = static_cast<int>(random() % kLines);
    while (lines < begin) std::this_thread::yield();
    RankStream stream = FromTheBeginning();
    std::string seen;
    for (bool end = false; !end;) {
      end = lines == kLines;
      seen += Take(&stream, end);
    }
    writer.join();
    ASSERT_TRUE(seen == Lines(1, kLines)) << "round " << round << ", " << seen.size() << " bytes";
  }
}

TEST_F(LogsStreamTest, AReaderThatFellBehindGoesOnWithTheOldestThatIsKept) {
  Open(5000, 2);
  WriteLines(1, 10);
  RankStream stream = FromTheBeginning();
  std::string seen = Take(&stream, false);
  WriteLines(11, 5000);
  seen += Take(&stream, true);
  EXPECT_TRUE(seen.starts_with(Lines(1, 10)));
  EXPECT_TRUE(seen.ends_with(Lines(4800, 5000)));
}

TEST_F(LogsStreamTest, ALineCutByARotationIsOneLine) {
  Open(4096);
  const std::string line = std::string(10'000, 'x') + "\n";
  ASSERT_EQ(writer_.Append(line, kTick), 0u);
  ASSERT_EQ(writer_.Append("next\n", 2 * kTick), 0u);
  RankStream stream = FromTheBeginning();
  const Piece* piece = stream.Peek(false);
  ASSERT_NE(piece, nullptr);
  EXPECT_EQ(piece->bytes, line);
  EXPECT_EQ(piece->time_ns, kTick);
  stream.Pop();
  EXPECT_EQ(stream.Peek(false)->bytes, "next\n");
}

// S19: a 10 MB line in bounded memory.
TEST_F(LogsStreamTest, AVeryLongLineComesInParts) {
  Open(0);
  const std::string line = std::string(10'000'000, 'x') + "\n";
  ASSERT_EQ(writer_.Append(line, kTick), 0u);
  RankStream stream = FromTheBeginning();
  size_t bytes = 0;
  for (const Piece* piece = stream.Peek(false); piece != nullptr; piece = stream.Peek(false)) {
    EXPECT_LE(piece->bytes.size(), kPieceBytesMax + 1);
    bytes += piece->bytes.size();
    EXPECT_EQ(piece->ends_line, bytes == line.size());
    stream.Pop();
  }
  EXPECT_EQ(bytes, line.size());
}

TEST_F(LogsStreamTest, ReturnsEndPiecesUnlessALineFeedFollows) {
  Open(0);
  ASSERT_EQ(writer_.Append("10%\r20%\rdone\r\n\r", kTick), 0u);
  RankStream stream = FromTheBeginning();
  for (const char* expected : {"10%\r", "20%\r", "done\r\n"}) {
    ASSERT_NE(stream.Peek(false), nullptr);
    EXPECT_EQ(stream.Peek(false)->bytes, expected);
    stream.Pop();
  }
  EXPECT_EQ(stream.Peek(false), nullptr);  // \n may follow
  EXPECT_EQ(Take(&stream, true), "\r");
}

TEST_F(LogsStreamTest, TailFindsTheLastLinesOverRotatedFiles) {
  Open(5000);
  WriteLines(1, 2000);
  for (uint64_t lines : {1u, 7u, 600u, 1999u, 2000u, 3000u}) {
    const int first = std::max(1, 2001 - static_cast<int>(lines));
    EXPECT_TRUE(From(TailPlace(Files(), lines)) == Lines(first, 2000)) << lines;
  }
  EXPECT_EQ(From(TailPlace(Files(), 0)), "");
  ASSERT_EQ(writer_.Append("partial", 1), 0u);
  EXPECT_EQ(From(TailPlace(Files(), 2)), "line 2000\npartial");
}

TEST_F(LogsStreamTest, SinceBeginsWithTheFirstLineOfThatTime) {
  Open(5000);
  WriteLines(1, 2000);
  for (int first : {1, 2, 500, 1234, 2000}) {
    EXPECT_TRUE(From(SincePlace(Files(), first * kTick)) == Lines(first, 2000)) << first;
    EXPECT_TRUE(From(SincePlace(Files(), first * kTick - 1)) == Lines(first, 2000)) << first;
  }
  EXPECT_EQ(From(SincePlace(Files(), 2001 * kTick)), "");
  EXPECT_TRUE(From(SincePlace(Files(), 0)) == Lines(1, 2000));
}

// Logs of an earlier version.
TEST_F(LogsStreamTest, WithoutAnIndexTheOrderOfTheFileCounts) {
  std::ofstream(log_) << Lines(1, 3);
  RankStream stream = FromTheBeginning();
  EXPECT_EQ(stream.Peek(false)->time_ns, 0);
  EXPECT_EQ(Take(&stream), Lines(1, 3));
  EXPECT_EQ(From(SincePlace(Files(), 0)), Lines(1, 3));
  EXPECT_EQ(From(SincePlace(Files(), INT64_MAX)), "");
}

// Bad input: an index of random bytes costs the order, and nothing else.
TEST_F(LogsStreamTest, AnIndexOfNonsenseChangesNoByte) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 50; ++round) {
    std::ofstream(log_) << Lines(1, 100);
    std::string bytes = round % 2 == 0 ? kLogTimesHeader : "";
    for (size_t i = random() % 3000; i > 0; --i) bytes += static_cast<char>(random());
    std::ofstream(log_ + kLogTimesSuffix, std::ios::binary) << bytes;
    EXPECT_TRUE(From(Beginning(Files())) == Lines(1, 100));
    const std::string some = From(SincePlace(Files(), 12345));
    EXPECT_TRUE(Lines(1, 100).ends_with(some));
  }
}

TEST_F(LogsStreamTest, TimesNeverGoBack) {
  Open(0);
  ASSERT_EQ(writer_.Append("a\n", 5 * kTick), 0u);
  ASSERT_EQ(writer_.Append("b\n", 2 * kTick), 0u);
  RankStream stream = FromTheBeginning();
  stream.Peek(false);
  stream.Pop();
  EXPECT_EQ(stream.Peek(false)->time_ns, 5 * kTick);
}

}  // namespace
}  // namespace ddprun::logs
