// The merge of many ranks' logs: order, prefixes, unfinished lines. Pure.
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "launcher/logs/merge.h"

namespace ddprun::logs {
namespace {

struct Line {
  int64_t time_ns;
  std::string bytes;
  bool ends_line = true;
};

// Lines that a test hands over one after the other.
class FakeSource : public Source {
 public:
  explicit FakeSource(std::deque<Line>* lines) : lines_(lines) {}
  const Piece* Peek(bool) override {
    if (lines_->empty()) return nullptr;
    piece_ = {lines_->front().time_ns, lines_->front().bytes, lines_->front().ends_line};
    return &piece_;
  }
  void Pop() override { lines_->pop_front(); }

 private:
  std::deque<Line>* lines_;
  Piece piece_;
};

class MergerTest : public ::testing::Test {
 protected:
  MergerTest() : merger_([this](std::string_view bytes) { out_.append(bytes); }) {
    for (size_t i = 0; i < 3; ++i) {
      merger_.Add(std::make_unique<FakeSource>(&lines_[i]),
                  std::string("[").append(std::to_string(i)) + "] ");
    }
  }
  std::string TakeOutput() { return std::exchange(out_, ""); }

  std::deque<Line> lines_[3];
  std::string out_;
  Merger merger_;
};

TEST_F(MergerTest, TimeDecidesThenTheOrderOfTheSources) {
  lines_[0] = {{10, "a\n"}, {30, "d\n"}, {30, "e\n"}};
  lines_[1] = {{5, "first\n"}, {30, "f\n"}};
  lines_[2] = {{20, "b\n"}, {20, "c\n"}, {40, "g\n"}};
  merger_.Run(false);
  EXPECT_EQ(TakeOutput(), "[1] first\n[0] a\n[2] b\n[2] c\n[0] d\n[0] e\n[1] f\n[2] g\n");
}

TEST_F(MergerTest, BytesAreNotChanged) {
  const std::string bytes("\0\xff\x1b[31m \t", 9);
  lines_[1] = {{1, bytes + "\n"}, {1, "\n"}, {1, "10%\r"}, {1, "20%\r"}};
  merger_.Run(false);
  EXPECT_EQ(TakeOutput(), std::string("[1] ") + bytes + "\n[1] \n[1] 10%\r[1] 20%\r");
}

TEST_F(MergerTest, PartsOfALongLineStayTogetherWithOnePrefix) {
  lines_[0] = {{1, "xxx", false}, {1, "yyy", false}, {1, "z\n"}};
  lines_[1] = {{1, "other\n"}};
  merger_.Run(false);
  EXPECT_EQ(TakeOutput(), "[0] xxxyyyz\n[1] other\n");
}

// Following: the rest of a long line is late.
TEST_F(MergerTest, ALineLeftUnfinishedIsEndedAndGoesOnBehindItsPrefix) {
  lines_[0] = {{1, "xxx", false}};
  merger_.Run(false);
  EXPECT_EQ(TakeOutput(), "[0] xxx");
  lines_[0] = {{1, "yyy", false}};
  lines_[1] = {{0, "other\n"}};
  merger_.Run(false);
  EXPECT_EQ(TakeOutput(), "yyy\n[1] other\n");
  lines_[0] = {{1, "z\n"}};
  merger_.Run(false);
  EXPECT_EQ(TakeOutput(), "[0] z\n");
}

TEST_F(MergerTest, TheEndEndsAnUnfinishedLine) {
  lines_[2] = {{1, "no line feed", false}};
  merger_.Finish();
  EXPECT_EQ(TakeOutput(), "[2] no line feed\n");
  EXPECT_EQ(merger_.sources(), 0u);
}

}  // namespace
}  // namespace ddprun::logs
