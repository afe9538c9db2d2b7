// The console: lines, prefixes, and that no reader ever holds up a writer (L68, L70, L76).
#include "launcher/console/console.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "launcher/console/line_splitter.h"

namespace ddprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

constexpr int kDeadlineMilliseconds = 20000;

class Pipe {
 public:
  Pipe() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    read_ = fds[0];
    write_ = fds[1];
  }
  ~Pipe() {
    CloseReader();
    CloseWriter();
  }
  int writer() const { return write_; }
  void CloseReader() { Close(&read_); }
  void CloseWriter() { Close(&write_); }

  // Everything until the end of file, which comes when all writers are closed.
  std::string ReadAll() {
    std::string all;
    while (ReadSome(&all)) {
    }
    return all;
  }
  // Reads until `text` is there, or the deadline passes.
  std::string ReadUntil(const std::string& text) {
    std::string all;
    while (all.find(text) == std::string::npos && ReadSome(&all)) {
    }
    return all;
  }

 private:
  static void Close(int* fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  bool ReadSome(std::string* all) {
    pollfd polled = {read_, POLLIN, 0};
    if (poll(&polled, 1, kDeadlineMilliseconds) <= 0) {
      ADD_FAILURE() << "nothing came in time";
      return false;
    }
    char buffer[65536];
    const ssize_t bytes = read(read_, buffer, sizeof buffer);
    if (bytes <= 0) return false;
    all->append(buffer, static_cast<size_t>(bytes));
    return true;
  }
  int read_ = -1;
  int write_ = -1;
};

struct Shown {
  std::string output;
  std::string error;
};

// What a console shows of what `use` gives it.
template <typename Use>
Shown ShowAll(Use use) {
  Pipe output, error;
  {
    Console console(output.writer(), error.writer());
    use(console);
  }
  output.CloseWriter();
  error.CloseWriter();
  return {output.ReadAll(), error.ReadAll()};
}

TEST(ConsoleTest, EveryLineOfAWorkerHasItsPrefix) {
  const Shown shown = ShowAll([](Console& console) {
    console.WorkerOutput("n:0", "one\ntwo\n", 0);
    console.WorkerOutput("n:1", "three\n", 0);
  });
  EXPECT_EQ(shown.output, "[n:0] one\n[n:0] two\n[n:1] three\n");
  EXPECT_EQ(shown.error, "");
}

TEST(ConsoleTest, ALineThatComesInPiecesIsShownWhole) {
  const Shown shown = ShowAll([](Console& console) {
    console.WorkerOutput("0", "be", 0);
    console.WorkerOutput("1", "other\n", 0);
    console.WorkerOutput("0", "gin\n", 0);
  });
  EXPECT_EQ(shown.output, "[1] other\n[0] begin\n");
}

TEST(ConsoleTest, AnUnendedLineIsShownWhenItsWorkerEnds) {
  Pipe output, error;
  Console console(output.writer(), error.writer());
  console.WorkerOutput("0", "no line feed", 0);
  console.EndOf("0");
  EXPECT_THAT(output.ReadUntil("\n"), "[0] no line feed\n");
}

// L70: progress bars.
TEST(ConsoleTest, CarriageReturnsEndLinesAndLeaveNoEmptyOnes) {
  const Shown shown = ShowAll([](Console& console) {
    console.WorkerOutput("0", "\r 10%\r 20%\r", 0);
    console.WorkerOutput("0", "\n\ndone\r\n", 0);
  });
  EXPECT_EQ(shown.output, "[0]  10%\n[0]  20%\n[0] \n[0] done\n");
}

// L70, S19: ten minutes of updates cost neither memory nor pages of output; the last one is shown.
TEST(ConsoleTest, OfManyUpdatesTheFirstAndTheLastAreShown) {
  const Shown shown = ShowAll([](Console& console) {
    for (int i = 0; i < 100000; ++i) {
      console.WorkerOutput("0", "\r step " + std::to_string(i), 0);
    }
    console.WorkerOutput("0", "\rdone", 0);
  });
  EXPECT_THAT(shown.output, HasSubstr("[0]  step 0\n"));
  EXPECT_THAT(shown.output, HasSubstr("[0]  step 99999\n[0] done\n"));
  // One a second; so much only on a machine that takes a minute for the loop.
  EXPECT_LT(shown.output.size(), 60u * 20);
}

TEST(ConsoleTest, ALineAfterUpdatesComesBehindTheLastOfThem) {
  const Shown shown = ShowAll([](Console& console) {
    console.WorkerOutput("0", "1%\r2%\r3%\rline\r\nnext\r", 0);
    console.WorkerOutput("0", "\nlast\n", 0);
  });
  EXPECT_EQ(shown.output, "[0] 1%\n[0] 3%\n[0] line\n[0] next\n[0] last\n");
}

// L68: bytes that are no UTF-8 pass unchanged.
TEST(ConsoleTest, BytesAreNotChanged) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    if (i != '\n' && i != '\r') bytes.push_back(static_cast<char>(i));
  }
  const Shown shown =
      ShowAll([&](Console& console) { console.WorkerOutput("0", bytes + "\n", 0); });
  EXPECT_EQ(shown.output, "[0] " + bytes + "\n");
}

// S19: a 1 MB line in bounded memory.
TEST(ConsoleTest, AVeryLongLineIsShownInPieces) {
  const std::string line(1 << 20, 'x');
  Pipe output, error;
  std::string all;
  {
    Console console(output.writer(), error.writer());
    console.WorkerOutput("0", line + "\n", 0);
    all = output.ReadUntil("xx\n[0] \n");
  }
  std::string expected;
  for (size_t i = 0; i < line.size() / Console::kLineBytesMax; ++i) {
    expected += "[0] " + std::string(Console::kLineBytesMax, 'x') + "\n";
  }
  EXPECT_EQ(all, expected + "[0] \n");
}

TEST(ConsoleTest, OwnLinesGoToStandardError) {
  const Shown shown = ShowAll([](Console& console) { console.Say("ddprun: hello"); });
  EXPECT_EQ(shown.output, "");
  EXPECT_EQ(shown.error, "ddprun: hello\n");
}

// L76: the caller is the thread that reads the workers' pipes.
TEST(ConsoleTest, AReaderThatNeverReadsHoldsUpNobody) {
  Pipe output, error;
  const auto start = Clock::now();
  {
    Console console(output.writer(), error.writer());
    const std::string line(1000, 'x');
    for (int i = 0; i < 100000; ++i) console.WorkerOutput("0", line + "\n", 0);  // 100 MB
    console.Say("still here");
    // The other descriptor is served all the same.
    EXPECT_EQ(error.ReadUntil("\n"), "still here\n");
  }
  // The destructor gives up after a second, and says how much was not shown (S19).
  error.CloseWriter();
  EXPECT_THAT(error.ReadAll(), ::testing::ContainsRegex("was not read: [0-9]{8,9} bytes"));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15));
}

TEST(ConsoleTest, WhatIsDroppedIsCountedAndTold) {
  constexpr size_t kLine = 999;
  constexpr size_t kLines = 20000;
  Pipe output, error;
  std::string all;
  {
    Console console(output.writer(), error.writer());
    const std::string line(kLine, 'x');
    for (size_t i = 0; i < kLines; ++i) console.WorkerOutput("0", line + "\n", 0);
    // All that fitted is read; what comes then is shown behind the note.
    const size_t fits = Console::kQueueBytesMax / (kLine + 5);
    while (all.size() < (fits - 1) * (kLine + 5) && !HasFailure()) all += output.ReadUntil("\n");
    console.WorkerOutput("0", "more\n", 0);
    all += output.ReadUntil("more\n");
  }
  const size_t note = all.find("[ddprun] ");
  ASSERT_NE(note, std::string::npos);
  const size_t dropped = std::strtoul(all.c_str() + note + 9, nullptr, 10);
  size_t shown = 0;
  for (size_t at = all.find("[0] x"); at != std::string::npos; at = all.find("[0] x", at + 1)) {
    ++shown;
  }
  EXPECT_EQ(dropped, (kLines - shown) * (kLine + 1));
}

TEST(ConsoleTest, BytesDroppedByOthersAreToldToo) {
  const Shown shown = ShowAll([](Console& console) {
    console.WorkerOutput("0", "torn", 0);
    console.WorkerOutput("0", "new\n", 4096);
  });
  EXPECT_THAT(shown.output, HasSubstr("[0] torn\n[ddprun] 4096 bytes of output are not shown"));
  EXPECT_THAT(shown.output, HasSubstr("\n[0] new\n"));
}

TEST(ConsoleTest, AReaderThatHasGoneEndsNothing) {
  Pipe output, error;
  output.CloseReader();
  Console console(output.writer(), error.writer());
  for (int i = 0; i < 100; ++i) console.WorkerOutput("0", "line\n", 0);
  console.Flush(10);
  console.Say("alive");
  EXPECT_EQ(error.ReadUntil("\n"), "alive\n");
}

TEST(ConsoleTest, WithoutATerminalThereIsNoStatusLine) {
  const Shown shown = ShowAll([](Console& console) {
    EXPECT_FALSE(console.IsTerminal());
    console.Status("50 %");
    console.Say("line");
  });
  EXPECT_EQ(shown.error, "line\n");
}

TEST(ConsoleTest, OnATerminalTheStatusLineIsTakenAwayForALineAndPutBack) {
  ASSERT_EQ(setenv("TERM", "xterm", 1), 0);
  int master = -1, terminal = -1;
  winsize size = {};
  size.ws_col = 40;
  ASSERT_EQ(openpty(&master, &terminal, nullptr, nullptr, &size), 0);
  auto read_until = [master](const std::string& end) {
    std::string all;
    pollfd polled = {master, POLLIN, 0};
    while (all.find(end) == std::string::npos && poll(&polled, 1, kDeadlineMilliseconds) > 0) {
      char buffer[4096];
      const ssize_t bytes = read(master, buffer, sizeof buffer);
      if (bytes <= 0) break;
      all.append(buffer, static_cast<size_t>(bytes));
    }
    return all;
  };
  {
    Console console(terminal, terminal);
    EXPECT_TRUE(console.IsTerminal());
    console.Status("step 1");
    EXPECT_EQ(read_until("step 1"), "\r\x1b[Kstep 1");
    console.WorkerOutput("0", "hello\n", 0);
    EXPECT_EQ(read_until("step 1"), "\r\x1b[K[0] hello\r\n\r\x1b[Kstep 1");
    console.Status(std::string(100, 'y'));
    EXPECT_EQ(read_until(std::string(39, 'y')), "\r\x1b[K" + std::string(39, 'y'));
  }
  EXPECT_EQ(read_until("\x1b[K"), "\r\x1b[K");
  close(terminal);
  close(master);
}

TEST(LineSplitterTest, ALineEndSplitOverTwoChunksIsOneEnd) {
  LineSplitter splitter(100);
  std::string lines;
  auto take = [&lines](std::string_view line, LineSplitter::End end) {
    const char* const marks[] = {"|", "~", "^"};  // line feed, return, late line feed
    lines.append(line).append(marks[static_cast<int>(end)]);
  };
  splitter.Feed("a\r", take);
  splitter.Feed("\nb\n", take);
  splitter.Feed("c\r\n\r\rd\re", take);
  EXPECT_EQ(lines, "a~^b|c|d~");
  EXPECT_EQ(splitter.TakePartial(), "e");
}

}  // namespace
}  // namespace ddprun
