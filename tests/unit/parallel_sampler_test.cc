// The sampler against PyTorch's: stored vectors, a live comparison where Python's torch is there,
// and resume.
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "worker/parallel/sampler.h"

namespace ddprun {
namespace {

std::string SourceFile(const std::string& name) {
  const char* source = std::getenv("DDPRUN_SOURCE");
  return absl::StrCat(source == nullptr ? "." : source, "/tests/unit/", name);
}

// As in make_sampler_vectors.py.
std::string Hash(const std::vector<int64_t>& numbers) {
  uint64_t value = 0xcbf29ce484222325U;
  for (int64_t number : numbers) {
    for (int byte = 0; byte < 8; ++byte) {
      value = (value ^ (static_cast<uint64_t>(number) >> (8 * byte) & 0xffU)) * 0x100000001b3U;
    }
  }
  return absl::StrCat("#", numbers.size(), " ", value);
}

struct Case {
  SamplerOptions options;
  int64_t epoch = 0;
};

Case ParseCase(const std::string& text) {
  std::istringstream fields(text);
  Case parsed;
  fields >> parsed.options.samples >> parsed.options.replicas >> parsed.options.shuffle >>
      parsed.options.drop_last >> parsed.options.seed >> parsed.epoch;
  EXPECT_FALSE(fields.fail()) << text;
  return parsed;
}

// Compares every line of Python's output with our sampler; returns how many cases there were.
int CompareLines(std::istream& lines) {
  int cases = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, '|');
    const Case parsed = ParseCase(parts[0]);
    const DistributedSampler sampler(parsed.options);
    EXPECT_EQ(static_cast<int>(parts.size()), parsed.options.replicas + 1) << line;
    for (int rank = 0; rank < parsed.options.replicas; ++rank) {
      const auto indices = sampler.IndicesFor(rank, parsed.epoch);
      EXPECT_EQ(static_cast<int64_t>(indices.size()), sampler.NumSamples());
      const std::string expected(absl::StripAsciiWhitespace(parts[static_cast<size_t>(rank) + 1]));
      const std::string got =
          absl::StartsWith(expected, "#") ? Hash(indices) : absl::StrJoin(indices, " ");
      EXPECT_EQ(got, expected) << parts[0] << " rank " << rank;
      if (got != expected) return -1;
    }
    ++cases;
  }
  return cases;
}

TEST(Sampler, EqualsTheStoredVectorsOfPyTorchsDistributedSampler) {
  std::ifstream stored(SourceFile("sampler_vectors.txt"));
  ASSERT_TRUE(stored.is_open());
  EXPECT_EQ(CompareLines(stored), 406);
}

TEST(Sampler, EqualsPyTorchsDistributedSamplerLive) {
  const char* python = std::getenv("DDPRUN_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "DDPRUN_PYTHON names no Python; configure with -DDDPRUN_PYTHON=…";
  }
  if (std::system(absl::StrCat(python, " -c 'import torch.utils.data' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << python << " cannot import torch";
  }
  FILE* pipe =
      popen(absl::StrCat(python, " ", SourceFile("make_sampler_vectors.py"), " 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[65536];
  for (size_t got; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, got);
  ASSERT_EQ(pclose(pipe), 0) << output;
  std::istringstream lines(output);
  EXPECT_EQ(CompareLines(lines), 406);
}

// TR1: every rank has equally many samples, so none waits for another that has no more.
TEST(Sampler, UnevenNumbersGiveEveryRankEquallyMany) {
  const DistributedSampler padded({.samples = 101, .replicas = 2});
  EXPECT_EQ(padded.NumSamples(), 51);
  EXPECT_EQ(padded.TotalSize(), 102);
  EXPECT_EQ(padded.IndicesFor(0, 0).size(), padded.IndicesFor(1, 0).size());
  const DistributedSampler cut({.samples = 101, .replicas = 2, .drop_last = true});
  EXPECT_EQ(cut.NumSamples(), 50);
  EXPECT_EQ(DistributedSampler({.samples = 3, .replicas = 4, .drop_last = true}).NumSamples(), 0);
}

TEST(Sampler, EpochsAndSeedsGiveOtherOrdersAndTheSameOnesAgain) {
  const DistributedSampler sampler({.samples = 100, .replicas = 1, .seed = 5});
  const DistributedSampler same({.samples = 100, .replicas = 1, .seed = 4});
  EXPECT_NE(sampler.IndicesFor(0, 0), sampler.IndicesFor(0, 1));
  EXPECT_EQ(sampler.IndicesFor(0, 0), same.IndicesFor(0, 1));  // seed + epoch, as in PyTorch
  EXPECT_EQ(sampler.IndicesFor(0, 1), sampler.IndicesFor(0, 1));
}

// What all ranks see in the places 0 … count−1 of what is left, in the order of the global places.
std::vector<int64_t> Seen(const DistributedSampler& sampler, int replicas, int64_t seen,
                          int64_t count) {
  std::vector<std::vector<int64_t>> ranks;
  for (int rank = 0; rank < replicas; ++rank) ranks.push_back(sampler.IndicesFor(rank, 3, seen));
  std::vector<int64_t> result;
  for (int64_t place = 0; place < count; ++place) {
    result.push_back(
        ranks[static_cast<size_t>(place % replicas)][static_cast<size_t>(place / replicas)]);
  }
  return result;
}

// C9, TR31: stopped anywhere and resumed with the same ranks, each rank goes on with what it would
// have seen.
TEST(Sampler, ResumeWithTheSameRanksContinuesTheSameOrder) {
  for (bool drop_last : {false, true}) {
    for (int replicas : {1, 2, 3, 4}) {
      const DistributedSampler sampler(
          {.samples = 101, .replicas = replicas, .drop_last = drop_last, .seed = 9});
      for (int64_t steps = 0; steps <= sampler.NumSamples(); ++steps) {
        for (int rank = 0; rank < replicas; ++rank) {
          auto whole = sampler.IndicesFor(rank, 3);
          whole.erase(whole.begin(), whole.begin() + steps);
          EXPECT_EQ(sampler.IndicesFor(rank, 3, steps * replicas), whole);
        }
      }
    }
  }
}

// C9, TR31: over all ranks and restarts, with other numbers of ranks, each sample is seen exactly
// once, in the order of the epoch, as long as no padding is needed.
TEST(Sampler, ResumeWithOtherRanksSeesEverySampleExactlyOnce) {
  const SamplerOptions four = {.samples = 120, .replicas = 4, .seed = 11};
  SamplerOptions three = four;
  three.replicas = 3;
  SamplerOptions one = four;
  one.replicas = 1;
  std::vector<int64_t> all = Seen(DistributedSampler(four), 4, 0, 48);
  const auto second = Seen(DistributedSampler(three), 3, 48, 33);
  const auto third = Seen(DistributedSampler(one), 1, 81, DistributedSampler(one).NumSamples(81));
  all.insert(all.end(), second.begin(), second.end());
  all.insert(all.end(), third.begin(), third.end());
  EXPECT_EQ(all, DistributedSampler(one).IndicesFor(0, 3));
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 120U);
}

TEST(Sampler, AnEpochThatIsOverHasNothingLeft) {
  const DistributedSampler sampler({.samples = 101, .replicas = 2});
  EXPECT_EQ(sampler.NumSamples(102), 0);
  EXPECT_TRUE(sampler.IndicesFor(1, 0, 102).empty());
}

TEST(Sampler, ImpossibleNumbersAreRefused) {
  EXPECT_FALSE(DistributedSampler::Validate({.samples = 0, .replicas = 1}).ok());
  EXPECT_FALSE(DistributedSampler::Validate({.samples = 10, .replicas = 0}).ok());
  EXPECT_FALSE(
      DistributedSampler::Validate({.samples = DistributedSampler::kSamplesMax + 1, .replicas = 1})
          .ok());
  EXPECT_TRUE(DistributedSampler::Validate({.samples = 10, .replicas = 4}).ok());
}

}  // namespace
}  // namespace ddprun
