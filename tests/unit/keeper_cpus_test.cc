// CPUS of the keeper's spec.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/keeper/spec.h"

namespace ddprun::keeper {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string WithCpus(const std::string& value) {
  std::string bytes;
  for (const std::string& line :
       {std::string("WORKER=0"), std::string("ARG=true"), std::string("LOG=/x"), value}) {
    bytes += line;
    bytes.push_back('\0');
  }
  return bytes;
}

TEST(KeeperCpusTest, ListsAreReadAsTheKernelWritesThem) {
  std::string problem;
  const std::string bytes = WithCpus("CPUS=0-2,8,10-11");
  const auto spec = ParseSpec(bytes, &problem);
  ASSERT_TRUE(spec.has_value()) << problem;
  EXPECT_THAT(spec->workers[0].cpus, ElementsAre(0, 1, 2, 8, 10, 11));
  const std::string without = WithCpus("CONSOLE=0");
  EXPECT_THAT(ParseSpec(without, &problem)->workers[0].cpus, IsEmpty());
}

TEST(KeeperCpusTest, NonsenseIsRefusedAndQuoted) {
  for (const char* value : {"CPUS=", "CPUS=a", "CPUS=3-1", "CPUS=1,1", "CPUS=4,2", "CPUS=1-",
                            "CPUS=-1", "CPUS=0-9999999999", "CPUS=8192", "CPUS=1,,2"}) {
    std::string problem;
    EXPECT_FALSE(ParseSpec(WithCpus(value), &problem).has_value()) << value;
    EXPECT_THAT(problem, HasSubstr(value));
  }
}

}  // namespace
}  // namespace ddprun::keeper
