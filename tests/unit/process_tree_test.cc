// The descendants of this very process, in both ways of finding them.
#include "common/process_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace ddprun {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A process that sleeps until it is killed, with a child that does the same when asked for. Reports
// its pids by a pipe.
struct Family {
  pid_t parent = 0;
  pid_t child = 0;

  explicit Family(bool own_session = false) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    parent = fork();
    if (parent == 0) {
      const pid_t grandchild = fork();
      if (grandchild == 0) {
        if (own_session) setsid();
        prctl(PR_SET_NAME, "x) R 1 1 ((");  // a name that looks like the rest of the line
        const pid_t self = getpid();
        if (write(ends[1], &self, sizeof self) < 0) _exit(1);
      }
      for (;;) pause();
    }
    if (read(ends[0], &child, sizeof child) != sizeof child) abort();
    close(ends[0]);
    close(ends[1]);
  }
};

void ReapAll() {
  while (waitpid(-1, nullptr, 0) > 0) {
  }
}

class ProcessTree : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }
  void TearDown() override {
    KillDescendants(getpid());
    ReapAll();
  }
};

TEST_F(ProcessTree, ListsChildrenAndGrandchildrenParentsFirst) {
  const Family family;
  EXPECT_THAT(ListDescendantsByChildren(getpid(), {}), ElementsAre(family.parent, family.child));
  EXPECT_THAT(ListDescendantsByScan(getpid(), {}), ElementsAre(family.parent, family.child));
  EXPECT_THAT(ListDescendants(getpid()), ElementsAre(family.parent, family.child));
  EXPECT_THAT(ListDescendants(family.parent), ElementsAre(family.child));
}

TEST_F(ProcessTree, ExceptLeavesOutAWholeSubtree) {
  const Family kept;
  const Family listed(/*own_session=*/true);
  const std::vector<pid_t> except = {kept.parent};
  EXPECT_THAT(ListDescendantsByChildren(getpid(), except),
              UnorderedElementsAre(listed.parent, listed.child));
  EXPECT_THAT(ListDescendantsByScan(getpid(), except),
              UnorderedElementsAre(listed.parent, listed.child));
}

TEST_F(ProcessTree, FindsChildrenOfEveryThread) {
  pid_t child = 0;
  std::thread thread([&child] {
    child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    EXPECT_THAT(ListDescendants(getpid()), ElementsAre(child));
  });
  thread.join();
  EXPECT_THAT(ListDescendants(getpid()), ElementsAre(child));
}

TEST_F(ProcessTree, KillTakesAllButTheExceptedAndSaysWhom) {
  const Family kept;
  const Family killed(/*own_session=*/true);
  const std::vector<pid_t> except = {kept.parent};
  EXPECT_THAT(KillDescendants(getpid(), except), UnorderedElementsAre(killed.parent, killed.child));
  EXPECT_EQ(waitpid(killed.parent, nullptr, 0), killed.parent);
  EXPECT_EQ(waitpid(killed.child, nullptr, 0), killed.child) << "an orphan comes to the subreaper";
  EXPECT_EQ(kill(kept.parent, 0), 0);
  EXPECT_EQ(kill(kept.child, 0), 0);
}

TEST_F(ProcessTree, OfNobodyIsEmpty) {
  EXPECT_THAT(ListDescendants(getpid()), IsEmpty());
  EXPECT_THAT(ListDescendantsByScan(getpid(), {}), IsEmpty());
  EXPECT_THAT(ListDescendants(4194305), IsEmpty()) << "above every pid_max";
}

}  // namespace
}  // namespace ddprun
