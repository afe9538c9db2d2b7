// Workers that do not keep to the rules: what they do is counted and told in a clear line, and the
// other workers of the job are not disturbed. Real workers under a real keeper; rank 1 is the
// hostile one.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "tests/process/node_harness.h"

namespace ddprun::testing {
namespace {

// Rank 0 says Hello and Ready once rank 1 has done its worst (the file is there), and ends well.
constexpr char kGoodRank[] = R"(
  if [ $RANK = 0 ]; then
    until [ -e $DDPRUN_STATE_DIR/done ]; do sleep 0.02; done
    exec ${DDPRUN_PYTHON:-python3} -c "
import os
for text in 'TYPE=Hello\nPROTOCOL=1\nPID=%d\n' % os.getpid(), 'TYPE=Ready\n', 'TYPE=Finished\n':
    os.write(3, text.encode())
print('good')
"
  fi
  finish() { touch $DDPRUN_STATE_DIR/done; }
)";

// A shell would write a packet line by line.
std::string Python(const std::string& code) {
  return "finish; exec ${DDPRUN_PYTHON:-python3} -c \"import os, sys\n" + code + "\"";
}

struct HostileResult {
  std::string console;
  int ready_of_rank_0 = 0;
};

// Runs both, and expects rank 0 to be as if it were alone.
void RunBoth(const std::string& script, Node& node, HostileResult* result) {
  node.Begin();
  ASSERT_TRUE(node.RunToEnd(60));
  ASSERT_TRUE(node.Exit(0) && node.Exit(1)) << node.ConsoleText();
  EXPECT_EQ(node.Exit(0)->exit_code(), 0) << script;
  EXPECT_TRUE(node.Exit(0)->finished());
  EXPECT_EQ(node.Log(0), "good\n");
  EXPECT_TRUE(node.gone()->unkillable_pids.empty());
  EXPECT_FALSE(node.gone()->died);
  for (const v1::AgentMessage& fact : node.facts()) {
    result->ready_of_rank_0 += fact.has_worker_ready() && fact.worker_ready().rank() == 0;
    EXPECT_FALSE(fact.has_worker_ready() && fact.worker_ready().rank() != 0);
  }
  EXPECT_EQ(result->ready_of_rank_0, 1);
  result->console = node.ConsoleText();
}

HostileResult RunHostile(const std::string& script, int code_of_rank_1 = 0) {
  Node node(2, kGoodRank + script);
  HostileResult result;
  RunBoth(script, node, &result);
  if (node.Exit(1) != nullptr) {
    EXPECT_EQ(node.Exit(1)->exit_code(), code_of_rank_1) << result.console;
  }
  return result;
}

TEST(HostileWorkerTest, ClosesItsSocketAndItsOutput) {
  RunHostile("exec 3>&- 1>&- 2>&-; finish; sleep 0.2; exit 5", 5);
}

TEST(HostileWorkerTest, ForksAndLeaves) {
  // The job has succeeded when the mains have ended; what they left is killed then.
  Node node(2, std::string(kGoodRank) +
                   "setsid bash -c 'setsid sleep 987 & echo $! > $DDPRUN_STATE_DIR/pid; sleep 986' "
                   "& until [ -s $DDPRUN_STATE_DIR/pid ]; do sleep 0.02; done; finish; exit 0");
  HostileResult result;
  RunBoth("fork", node, &result);
  EXPECT_EQ(node.Exit(1)->exit_code(), 0);
  std::ifstream file(node.folder() + "/run/state/pid");
  pid_t child = 0;
  file >> child;
  ASSERT_GT(child, 0);
  EXPECT_NE(kill(child, 0), 0) << "the child of a worker lives on";
}

TEST(HostileWorkerTest, LiesAboutItsPid) {
  const HostileResult result = RunHostile(Python(R"(
os.write(3, b'TYPE=Hello\nPROTOCOL=1\nPID=1\n')
os.write(3, b'TYPE=Ready\n')
)"));
  EXPECT_TRUE(Contains(result.console, "rank 1: a packet is void: Hello with PID=1 from process"))
      << result.console;
  EXPECT_TRUE(Contains(result.console, "rank 1: a packet is void: Ready before Hello"));
  EXPECT_TRUE(Contains(result.console, "rank 1: 2 of its packets were void")) << result.console;
}

TEST(HostileWorkerTest, LiesAboutItsRank) {
  // A rank that it names counts for nothing: it is known by its socket.
  Node node(2, std::string(kGoodRank) + Python(R"(
os.write(3, b'TYPE=Hello\nPROTOCOL=1\nPID=%d\nRANK=0\n' % os.getpid())
os.write(3, b'TYPE=Failed\nKIND=error\nMESSAGE=x\nRANK=0\n')
sys.exit(1)
)"));
  HostileResult result;
  RunBoth("rank", node, &result);
  bool told = false;
  for (const v1::AgentMessage& fact : node.facts()) {
    if (fact.has_worker_failed()) {
      EXPECT_EQ(fact.worker_failed().rank(), 1u);
      told = true;
    }
  }
  EXPECT_TRUE(told);
}

TEST(HostileWorkerTest, SendsPacketsThatAreTooLongOrNoPackets) {
  const HostileResult result = RunHostile(Python(R"(
os.write(3, b'TYPE=Hello\nPROTOCOL=1\nPID=%d\n' % os.getpid())
os.write(3, b'TYPE=Progress\nSTEP=1\nX=' + b'x' * 70000 + b'\n')
os.write(3, b'nonsense')
os.write(3, b'\xff\xfe\x00')
)"));
  EXPECT_TRUE(Contains(result.console, "rank 1: a packet is void: longer than 65536 bytes"))
      << result.console;
  EXPECT_TRUE(Contains(result.console, "rank 1: 3 of its packets were void")) << result.console;
}

TEST(HostileWorkerTest, FillsItsPageWithNonsense) {
  for (const char* fill :
       {"head -c 4096 /dev/urandom >&4",
        // The right beginning, a writer that never leaves, and all bits set behind.
        "{ printf 'PDDP\\x01\\0\\0\\0\\x01\\0\\0\\0'; head -c 4084 /dev/zero | tr '\\0' '\\377'; } "
        ">&4"}) {
    const HostileResult result = RunHostile(std::string(fill) + "; finish; exit 6", 6);
    EXPECT_FALSE(Contains(result.console, "void")) << result.console;
  }
}

TEST(HostileWorkerTest, FloodsPackets) {
  Node node(2, std::string(kGoodRank) + Python(R"(
os.write(3, b'TYPE=Hello\nPROTOCOL=1\nPID=%d\n' % os.getpid())
for i in range(4000):
    os.write(3, b'TYPE=Publish\nGROUP=g\nNAME=n%d\nVALUE=%s\n' % (i, b'QUJD' * 8000))
)"));
  HostileResult result;
  RunBoth("flood", node, &result);
  int published = 0;
  for (const v1::AgentMessage& fact : node.facts()) published += fact.has_publish();
  EXPECT_GT(published, 100);
  EXPECT_LT(published, 4000) << "nothing was dropped";
  EXPECT_TRUE(Contains(result.console, "rank 1: it sends more than 2000 packets or 4 MiB a second"))
      << result.console;
  EXPECT_TRUE(Contains(result.console, "of its packets were void or too many")) << result.console;
}

}  // namespace
}  // namespace ddprun::testing
