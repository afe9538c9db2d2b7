// Options that say what becomes of failures, how workers are watched, and what is kept: text →
// JobSpec, and every error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "launcher/cli/preflight.h"
#include "launcher/cli/supervision_values.h"
#include "launcher/cli/values.h"
#include "tests/unit/cli_folder.h"

namespace ddprun::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

using Words = std::vector<std::string>;

class SupervisionOptionsTest : public ::testing::Test {
 protected:
  SupervisionOptionsTest() {
    here_.working_dir = folder_.path();
    here_.binary_folder = folder_ / "bin";
    here_.cores = 4;
    here_.environment = {{"PATH", "/usr/bin:/bin"}};
  }
  absl::StatusOr<RunPlan> Plan(Words options) {
    options.insert(options.end(), {"--", "true"});
    const auto parsed = ParseCommandLine(options, "ddprun");
    if (!parsed.ok()) return parsed.status();
    return PlanRun(*parsed, here_);
  }
  v1::JobSpec Spec(const Words& options) {
    const auto plan = Plan(options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->spec : v1::JobSpec();
  }
  std::string ErrorOf(const Words& options) {
    const std::vector<std::string> before = folder_.All();
    const auto plan = Plan(options);
    EXPECT_EQ(folder_.All(), before) << "planning makes nothing";
    return plan.ok() ? "no error" : std::string(plan.status().message());
  }

  Folder folder_;
  Surroundings here_;
};

TEST(DurationTest, UnitsMayBeGivenAndAddUp) {
  const std::pair<const char*, double> cases[] = {{"90", 90},      {"0.5", 0.5},  {"90s", 90},
                                                  {"30m", 1800},   {"2h", 7200},  {"1d", 86400.0},
                                                  {"1h30m", 5400}, {"1.5h", 5400}};
  for (const auto& [text, seconds] : cases) {
    const auto parsed = ParseSeconds(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, seconds) << text;
  }
  for (const char* text :
       {"", "x", "30x", "-1", "1h30", "nan", "inf", "1e3", "h", "1 h", "9999d"}) {
    EXPECT_FALSE(ParseSeconds(text).ok()) << text;
  }
}

// L30, L60: codes, ranges and signals.
TEST_F(SupervisionOptionsTest, CodesAreNumbersRangesAndSignals) {
  const v1::JobSpec spec = Spec({"--restart-on", "3,5-7,SIGKILL,segv", "--no-restart-on=85",
                                 "--exit-code-map", "85=75,SIGSEGV=3,1=0"});
  EXPECT_THAT(spec.restart().restart_on(), ElementsAre(3, 5, 6, 7, 128 + SIGKILL, 128 + SIGSEGV));
  EXPECT_THAT(spec.restart().no_restart_on(), ElementsAre(85));
  EXPECT_THAT(spec.supervision().exit_code_map(),
              UnorderedElementsAre(Pair(85, 75), Pair(128 + SIGSEGV, 3), Pair(1, 0)));
}

// L29, L32, L33, L65, S3: every value reaches its field.
TEST_F(SupervisionOptionsTest, EveryValueReachesTheJob) {
  const v1::JobSpec spec = Spec({"--restart-window",
                                 "1h",
                                 "--node-strikes=2",
                                 "--node-cooldown",
                                 "90s",
                                 "--hang-timeout=300",
                                 "--init-timeout",
                                 "2m",
                                 "--health-check",
                                 "nvidia-smi -L",
                                 "--health-check-timeout=5",
                                 "--on-failure",
                                 "mail me",
                                 "--on-finish",
                                 "cat > report",
                                 "--time-limit=12h",
                                 "--gpu-memory-wait",
                                 "0",
                                 "--cpu-binding=core-complex",
                                 "--grace=2m",
                                 "--log-max-size=100M",
                                 "--log-files",
                                 "3"});
  EXPECT_EQ(spec.restart().window_seconds(), 3600);
  EXPECT_EQ(spec.supervision().node_strikes_limit(), 2u);
  EXPECT_EQ(spec.supervision().node_cooldown_seconds(), 90);
  EXPECT_EQ(spec.supervision().hang_timeout_seconds(), 300);
  EXPECT_EQ(spec.supervision().init_timeout_seconds(), 120);
  EXPECT_EQ(spec.supervision().health_check(), "nvidia-smi -L");
  EXPECT_EQ(spec.supervision().health_check_timeout_seconds(), 5);
  EXPECT_EQ(spec.supervision().on_failure(), "mail me");
  EXPECT_EQ(spec.supervision().on_finish(), "cat > report");
  EXPECT_EQ(spec.time_limit_seconds(), 43200);
  EXPECT_EQ(spec.supervision().gpu_memory_wait_seconds(), 0);
  EXPECT_EQ(spec.launching().cpu_binding(), "core-complex");
  EXPECT_EQ(spec.grace_seconds(), 120);
  EXPECT_EQ(spec.logging().file_bytes_max(), uint64_t{100} << 20);
  EXPECT_EQ(spec.logging().rotated_files_kept(), 3u);
}

TEST_F(SupervisionOptionsTest, DefaultsOfAProgramAreThoseOfTheDocuments) {
  const v1::JobSpec spec = Spec({});
  EXPECT_THAT(spec.restart().restart_on(), IsEmpty());
  EXPECT_EQ(spec.restart().window_seconds(), 0);
  EXPECT_EQ(spec.supervision().hang_timeout_seconds(), 0) << "a program may be silent for a day";
  EXPECT_EQ(spec.supervision().init_timeout_seconds(), 0);
  EXPECT_EQ(spec.supervision().node_strikes_limit(), 0u);
  EXPECT_EQ(spec.supervision().gpu_memory_wait_seconds(), 60);
  EXPECT_THAT(spec.supervision().forwarded_signals(), ElementsAre(SIGUSR2));
  EXPECT_EQ(spec.time_limit_seconds(), 0);
  EXPECT_EQ(spec.logging().file_bytes_max(), 0u);
}

// L12: a signal is forwarded, or stops the job, never both.
TEST_F(SupervisionOptionsTest, SignalsAreForwardedOrStop) {
  EXPECT_THAT(Spec({"--forward-signals", "USR1,SIGUSR2"}).supervision().forwarded_signals(),
              ElementsAre(SIGUSR1, SIGUSR2));
  EXPECT_THAT(Spec({"--forward-signals=none"}).supervision().forwarded_signals(), IsEmpty());
  EXPECT_THAT(Spec({"--signals-to-handle", "SIGTERM,SIGUSR2"}).supervision().forwarded_signals(),
              IsEmpty())
      << "the default gives way";
  EXPECT_THAT(
      Spec({"--forward-signals=HUP", "--signals-to-handle=TERM"}).supervision().forwarded_signals(),
      ElementsAre(SIGHUP));
}

// A resumed job keeps what it was told, but for what is given now.
TEST_F(SupervisionOptionsTest, AResumedJobKeepsItsPolicies) {
  folder_.Write("runs/x/job.json",
                R"({"job_id":"x","program":["true"],"working_dir":"/","processes_per_node":1,
                    "nodes_min":1,"nodes_max":1,"device":"cpu","grace_seconds":7,
                    "restart":{"max_restarts":9,"restart_on":[85],"window_seconds":60},
                    "launching":{"role":"r","cpu_binding":"node"},
                    "logging":{"file_bytes_max":"8192","quiet_local_ranks":[1]},
                    "supervision":{"hang_timeout_seconds":5,"on_finish":"true",
                                   "exit_code_map":{"85":75},"forwarded_signals":[10]}})");
  const auto options = ParseCommandLine(
      {"--resume", "--run-dir", "runs/x", "--hang-timeout", "50", "--log-files", "2"}, "ddprun");
  ASSERT_TRUE(options.ok()) << options.status();
  const auto plan = PlanRun(*options, here_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const v1::JobSpec& spec = plan->spec;
  EXPECT_EQ(spec.restart().max_restarts(), 9u);
  EXPECT_THAT(spec.restart().restart_on(), ElementsAre(85));
  EXPECT_EQ(spec.restart().window_seconds(), 60);
  EXPECT_EQ(spec.launching().role(), "r");
  EXPECT_EQ(spec.launching().cpu_binding(), "node");
  EXPECT_EQ(spec.logging().file_bytes_max(), 8192u);
  EXPECT_EQ(spec.logging().rotated_files_kept(), 2u);
  EXPECT_THAT(spec.logging().quiet_local_ranks(), ElementsAre(1));
  EXPECT_EQ(spec.supervision().hang_timeout_seconds(), 50);
  EXPECT_EQ(spec.supervision().on_finish(), "true");
  EXPECT_THAT(spec.supervision().exit_code_map(), UnorderedElementsAre(Pair(85, 75)));
  EXPECT_THAT(spec.supervision().forwarded_signals(), ElementsAre(SIGUSR1));
}

TEST_F(SupervisionOptionsTest, KeptRunsAreCountedFromOne) {
  const auto options = ParseCommandLine({"--keep-runs", "5", "--", "true"}, "ddprun");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->keep_runs, 5u);
}

struct BadOption {
  Words words;
  std::vector<std::string> says;
};

// D3: also values that contradict each other.
TEST_F(SupervisionOptionsTest, EveryBadValueHasItsError) {
  const BadOption cases[] = {
      {{"--restart-on", "0"}, {"--restart-on 0:", "1 to 255"}},
      {{"--restart-on", "256"}, {"--restart-on 256:", "1 to 255"}},
      {{"--restart-on", "7-3"}, {"7-3 ends before it begins"}},
      {{"--restart-on", "1-2-3"}, {"no range"}},
      {{"--restart-on", "SIGFOO"}, {"SIGFOO", "SIGKILL"}},
      {{"--restart-on", "1,,2"}, {"--restart-on 1,,2:"}},
      {{"--restart-on", "3", "--no-restart-on", "1-5"}, {"--no-restart-on", "both name code 3"}},
      {{"--restart-on", "3", "--max-restarts", "0"}, {"--restart-on", "no effect"}},
      {{"--restart-window", "1h", "--max-restarts", "0"}, {"--restart-window", "no effect"}},
      {{"--restart-window", "0"}, {"--restart-window 0:", "more than 0"}},
      {{"--exit-code-map", "85"}, {"--exit-code-map 85:", "CODE=CODE"}},
      {{"--exit-code-map", "85=300"}, {"300", "0 to 255"}},
      {{"--exit-code-map", "85=1,85=2"}, {"names 85 twice"}},
      {{"--exit-code-map", "0=1"}, {"1 to 255"}},
      {{"--health-check", " "}, {"--health-check", "give a command"}},
      {{"--health-check-timeout", "5"}, {"no effect without --health-check"}},
      {{"--node-cooldown", "5"}, {"no effect without --node-strikes"}},
      {{"--time-limit", "0"}, {"--time-limit 0:", "more than 0"}},
      {{"--hang-timeout", "soon"}, {"--hang-timeout soon:", "30m"}},
      {{"--log-max-size", "10"}, {"--log-max-size 10:", "less than 4K"}},
      {{"--log-max-size", "10X"}, {"--log-max-size 10X:", "100M"}},
      {{"--log-max-size", "99999999999T"}, {"--log-max-size"}},
      {{"--log-files", "3"}, {"no effect without --log-max-size"}},
      {{"--keep-runs", "0"}, {"--keep-runs 0:", "from 1"}},
      {{"--forward-signals", "KILL"}, {"--forward-signals KILL:", "SIGKILL", "cannot be caught"}},
      {{"--forward-signals", "TSTP"}, {"SIGTSTP", "Ctrl-Z"}},
      {{"--forward-signals", "TERM"}, {"SIGTERM", "stops the job"}},
      {{"--forward-signals", "HUP"}, {"SIGHUP", "--signals-to-handle"}},
      {{"--forward-signals", "QUIT"}, {"SIGQUIT", "stops the job"}},
      {{"--forward-signals", ""}, {"value is missing"}},
      {{"--signals-to-handle", "SIGSTOP"}, {"SIGSTOP", "cannot be caught"}},
      {{"--signals-to-handle", "SIGTERM,"}, {"is no signal"}},
      {{"--signals-to-handle", "99"}, {"99", "is no signal"}},
      {{"--cpu-binding", "core"}, {"--cpu-binding core:", "core-complex"}},
  };
  for (const BadOption& bad : cases) {
    const std::string error = ErrorOf(bad.words);
    for (const std::string& part : bad.says) {
      EXPECT_THAT(error, HasSubstr(part)) << ::testing::PrintToString(bad.words);
    }
  }
}

}  // namespace
}  // namespace ddprun::cli
