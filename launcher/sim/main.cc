// ddprun-sim: runs the control plane under seeded faults and checks its invariants
// (docs/simulator.md).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/sim/simulate.h"

namespace ddprun::sim {
namespace {

constexpr char kUsage[] =
    "Usage: ddprun-sim --seeds A..B | --fresh N  [--jobs N] [--trace] [--no-faults | "
    "--membership]\n"
    "Runs each seed: a job of 8 to 16 nodes (or one) with faults, under virtual time. A broken\n"
    "invariant prints the seed and its trace, and ends with exit code 1.\n"
    "  --seeds A..B  these seeds, both included (one number: that one)\n"
    "  --fresh N     N seeds from a random one on, which is printed\n"
    "  --jobs N      threads (default: one per processor)\n"
    "  --trace       print what happens in each seed\n"
    "  --no-faults   nothing goes wrong\n"
    "  --membership  nodes leave and come back, and nothing else goes wrong\n";
constexpr uint64_t kJobsMax = 1024;

struct Options {
  uint64_t first = 0;
  uint64_t last = 0;
  uint64_t jobs = 1;
  bool seeds_given = false;
  bool trace = false;
  bool faults = true;
  bool only_membership = false;
};

bool ParseSeeds(const std::string& text, Options& options) {
  const size_t dots = text.find("..");
  options.seeds_given = true;
  if (dots == std::string::npos) {
    return absl::SimpleAtoi(text, &options.first) && absl::SimpleAtoi(text, &options.last);
  }
  return absl::SimpleAtoi(text.substr(0, dots), &options.first) &&
         absl::SimpleAtoi(text.substr(dots + 2), &options.last) && options.first <= options.last;
}

bool DrawSeeds(const std::string& text, Options& options) {
  uint64_t count = 0;
  if (!absl::SimpleAtoi(text, &count) || count == 0) return false;
  std::random_device random;
  options.first = random();
  options.last = options.first + count - 1;
  options.seeds_given = true;
  std::printf("seeds %llu..%llu\n", static_cast<unsigned long long>(options.first),
              static_cast<unsigned long long>(options.last));
  return true;
}

// Says what is wrong on standard error.
std::optional<Options> Parse(const std::vector<std::string>& arguments) {
  Options options;
  options.jobs = std::max(1U, std::thread::hardware_concurrency());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    const std::string value = i + 1 < arguments.size() ? arguments[i + 1] : "";
    bool good = true;
    if (name == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (name == "--trace") {
      options.trace = true;
      continue;
    }
    if (name == "--no-faults") {
      options.faults = false;
      continue;
    }
    if (name == "--membership") {
      options.only_membership = true;
      continue;
    }
    if (name == "--seeds") {
      good = ParseSeeds(value, options);
    } else if (name == "--fresh") {
      good = DrawSeeds(value, options);
    } else if (name == "--jobs") {
      good =
          absl::SimpleAtoi(value, &options.jobs) && options.jobs >= 1 && options.jobs <= kJobsMax;
    } else {
      std::fprintf(stderr, "ddprun-sim: unknown option %s\n%s", name.c_str(), kUsage);
      return std::nullopt;
    }
    if (!good) {
      std::fprintf(stderr, "ddprun-sim: %s does not take \"%s\"\n%s", name.c_str(), value.c_str(),
                   kUsage);
      return std::nullopt;
    }
    ++i;
  }
  if (options.seeds_given) return options;
  std::fprintf(stderr, "ddprun-sim: which seeds?\n%s", kUsage);
  return std::nullopt;
}

// Runs seeds on several threads and hands the reports on in the order of the seeds.
class Runner {
 public:
  explicit Runner(const Options& options) : options_(options), next_(options.first) {}

  int Run() {
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    threads.reserve(options_.jobs);
    for (uint64_t i = 0; i < options_.jobs; ++i) threads.emplace_back([this] { Work(); });
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (!total_.violation.empty()) return Explain();
    std::printf(
        "%llu seeds, %llu jobs, %llu events, %llu faults, %llu generations, %.1f s, %.0f "
        "seeds/s: every invariant held\n",
        Number(seeds_), Number(total_.jobs), Number(total_.events), Number(total_.faults),
        Number(total_.generations), took.count(), static_cast<double>(seeds_) / took.count());
    return 0;
  }

 private:
  static unsigned long long Number(uint64_t value) { return value; }

  void Work() {
    while (!stopped_) {
      const uint64_t seed = next_++;
      if (seed > options_.last) return;
      SeedReport report = RunSeed(seed, options_.faults, options_.trace, options_.only_membership);
      Take(std::move(report));
    }
  }

  void Take(SeedReport report) {
    std::lock_guard lock(mutex_);
    ++seeds_;
    total_.jobs += report.jobs;
    total_.events += report.events;
    total_.faults += report.faults;
    total_.generations += report.generations;
    if (!report.violation.empty()) {
      // The lowest one of those at hand.
      if (total_.violation.empty() || report.seed < total_.seed) {
        total_.seed = report.seed;
        total_.violation = report.violation;
      }
      stopped_ = true;
    }
    if (!options_.trace) return;
    waiting_.push_back(std::move(report));
    std::sort(waiting_.begin(), waiting_.end(),
              [](const SeedReport& a, const SeedReport& b) { return a.seed < b.seed; });
    while (!waiting_.empty() && waiting_.front().seed == options_.first + printed_) {
      std::fwrite(waiting_.front().trace.data(), 1, waiting_.front().trace.size(), stdout);
      waiting_.erase(waiting_.begin());
      ++printed_;
    }
  }

  // The trace is a function of the seed, so it is made only now.
  int Explain() {
    const SeedReport again = RunSeed(total_.seed, options_.faults, true, options_.only_membership);
    if (!options_.trace) std::fwrite(again.trace.data(), 1, again.trace.size(), stdout);
    std::printf("%s\nagain: ddprun-sim --seeds %llu%s\n", total_.violation.c_str(),
                Number(total_.seed),
                options_.only_membership ? " --membership"
                : options_.faults        ? ""
                                         : " --no-faults");
    return 1;
  }

  const Options options_;
  std::atomic<uint64_t> next_;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;  // guards what follows
  uint64_t seeds_ = 0;
  uint64_t printed_ = 0;
  SeedReport total_;  // sums; seed and violation of the lowest failing one
  std::vector<SeedReport> waiting_;
};

}  // namespace
}  // namespace ddprun::sim

int main(int argc, char** argv) {
  const std::optional<ddprun::sim::Options> options =
      ddprun::sim::Parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!options) return 2;
  return ddprun::sim::Runner(*options).Run();
}
