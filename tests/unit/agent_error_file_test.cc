// Error files of dead workers: PyTorch's forms, and everything that is none of them (L62).
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "launcher/agent/error_file.h"

namespace ddprun::agent {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// L62: what @record writes.
TEST(ErrorFileTest, MessageWithTracebackAndTimestamp) {
  std::string problem;
  const auto content = ParseErrorFile(
      R"({"message": {"message": "ValueError: rank 2 \u00e4 \ud83d\ude00", "errorCode": 1,
          "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"a.py\"\n",
                        "timestamp": "1700000000"}}})",
      &problem);
  ASSERT_TRUE(content) << problem;
  EXPECT_EQ(content->message, "ValueError: rank 2 \xC3\xA4 \xF0\x9F\x98\x80");
  EXPECT_EQ(content->traceback, "Traceback (most recent call last):\n  File \"a.py\"\n");
  EXPECT_EQ(content->timestamp_seconds, 1'700'000'000);
}

TEST(ErrorFileTest, OtherFormsOfTheSame) {
  struct Case {
    const char* text;
    const char* message;
    int64_t seconds;
  };
  for (const Case& c : {
           Case{R"({"message": "boom", "timestamp": 1700000000})", "boom", 1'700'000'000},
           Case{R"({"timestamp": 1700000000.75, "message": "boom"})", "boom", 1'700'000'000},
           Case{R"({"message": "boom"})", "boom", 0},
           Case{R"({"message": {"message": "boom"}})", "boom", 0},
           Case{R"({"message": {"extraInfo": {"rank": NaN, "timestamp": "17"}, "message": "b"}})",
                "b", 17},
           Case{R"({"message": "half a pair \udcff!"})", "half a pair \xEF\xBF\xBD!", 0},
           Case{R"({"message": "x", "timestamp": 1e999999})", "x", 1},
           Case{R"({"message": "x", "timestamp": 999999999999999999999999})", "x", 0},
           Case{R"({"message": "x", "timestamp": -5})", "x", 0},
           Case{R"({"other": [1, {"message": "no"}], "message": "yes"})", "yes", 0},
           Case{"{\"message\": \"cut off in the mid", "cut off in the mid", 0},
           Case{"{\"message\": \"raw \xFF byte\"}", "raw \xFF byte", 0},
       }) {
    std::string problem;
    const auto content = ParseErrorFile(c.text, &problem);
    ASSERT_TRUE(content) << c.text << ": " << problem;
    EXPECT_EQ(content->message, c.message) << c.text;
    EXPECT_EQ(content->timestamp_seconds, c.seconds) << c.text;
  }
}

TEST(ErrorFileTest, WhatIsNoReportIsOneSentence) {
  for (const std::string& text :
       {std::string(), std::string("not json"), std::string("{}"), std::string("[1,2"),
        std::string(1 << 20, '['), std::string(1 << 20, '{'), std::string(100, '\0'),
        std::string(R"({"message": )"), std::string(R"({"message": []})"), std::string("{\"\\"),
        std::string("\"\\u"), std::string("{\"a\":\"\\ud83d\\u")}) {
    std::string problem;
    EXPECT_FALSE(ParseErrorFile(text, &problem)) << text.substr(0, 20);
    EXPECT_FALSE(problem.empty());
    EXPECT_EQ(problem.find('\n'), std::string::npos);
  }
}

TEST(ErrorFileTest, LongFieldsAreCutBetweenCharacters) {
  std::string message = "begin";
  while (message.size() < 10'000) message += "\xC3\xA4";
  std::string traceback = "x";
  while (traceback.size() < 100'000) traceback += "\xC3\xA4";
  traceback += "end";
  std::string problem;
  const auto content =
      ParseErrorFile(R"({"message": {"message": ")" + message +
                         R"(", "extraInfo": {"py_callstack": ")" + traceback + "\"}}}",
                     &problem);
  ASSERT_TRUE(content);
  EXPECT_LE(content->message.size(), kErrorMessageBytesMax);
  EXPECT_GE(content->message.size(), kErrorMessageBytesMax - 1);
  EXPECT_EQ(content->message, message.substr(0, content->message.size()));
  EXPECT_EQ(content->message.back(), '\xA4');
  EXPECT_LE(content->traceback.size(), kErrorTracebackBytesMax);
  EXPECT_EQ(content->traceback.front(), '\xC3');
  EXPECT_TRUE(content->traceback.ends_with("end"));
}

TEST(ErrorFileTest, AnyBytesAreRead) {
  const unsigned seed = 4242;
  std::mt19937 random(seed);
  const std::string good = R"({"message": {"message": "m", "extraInfo": {"py_callstack": "t"}}})";
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (int i = 0; i < 4; ++i) text[random() % text.size()] = static_cast<char>(random());
    text.resize(random() % (text.size() + 1));
    std::string problem;
    const auto content = ParseErrorFile(text, &problem);
    EXPECT_NE(content.has_value(), !problem.empty()) << "seed " << seed << " round " << round;
  }
}

// L63: whole seconds order nothing; the file's own time does.
TEST(ErrorFileTest, TheFilesTimeCountsWhereItAgrees) {
  EXPECT_EQ(ErrorTimeNs(100, 100 * kSecond + 250), 100 * kSecond + 250);
  EXPECT_EQ(ErrorTimeNs(100, 101 * kSecond + 999), 101 * kSecond + 999);
  EXPECT_EQ(ErrorTimeNs(100, 99 * kSecond), 99 * kSecond);
  EXPECT_EQ(ErrorTimeNs(100, 98 * kSecond), 100 * kSecond);
  EXPECT_EQ(ErrorTimeNs(100, 102 * kSecond), 100 * kSecond);
  EXPECT_EQ(ErrorTimeNs(0, 7), 7);
}

class ErrorFileOnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "error-file-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(ErrorFileOnDisk, MissingIsNoProblemAndOtherKindsAre) {
  std::string problem;
  EXPECT_FALSE(ReadErrorFile(folder_ + "/none.json", &problem));
  EXPECT_EQ(problem, "");
  EXPECT_FALSE(ReadErrorFile(folder_, &problem));
  EXPECT_EQ(problem, "it is not a regular file");
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  problem.clear();
  EXPECT_FALSE(ReadErrorFile(pipe, &problem));  // and does not wait for a writer
  EXPECT_EQ(problem, "it is not a regular file");
}

TEST_F(ErrorFileOnDisk, AFileOfAnySizeIsReadToItsBound) {
  const std::string path = folder_ + "/error.json";
  std::ofstream(path) << R"({"message": "first", "rest": ")" << std::string(3 << 20, 'x') << "\"}";
  std::string problem;
  const auto report = ReadErrorFile(path, &problem);
  ASSERT_TRUE(report) << problem;
  EXPECT_EQ(report->content.message, "first");
  EXPECT_GT(report->time_ns, 1'000'000'000 * kSecond);
}

}  // namespace
}  // namespace ddprun::agent
