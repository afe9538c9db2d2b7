// The command line: what is taken apart how, and the text of every error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "launcher/cli/option_table.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

using Words = std::vector<std::string>;

Options Parsed(const Words& words) {
  const auto options = ParseCommandLine(words, "ddprun");
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : Options{};
}

std::string ErrorOf(const Words& words) {
  const auto options = ParseCommandLine(words, "ddprun");
  return options.ok() ? "no error" : std::string(options.status().message());
}

TEST(OptionsTest, AConfigMayStandBeforeOrBehindOptions) {
  for (const Words& words : {Words{"--nproc", "4", "train.cfg"}, Words{"train.cfg", "--nproc=4"},
                             Words{"run", "train.cfg", "--nproc", "4"}}) {
    const Options options = Parsed(words);
    EXPECT_EQ(options.command, Command::kRun);
    EXPECT_EQ(options.config_path, "train.cfg");
    ASSERT_TRUE(options.processes.has_value());
    EXPECT_EQ(options.processes->number, 4u);
    EXPECT_THAT(options.program, IsEmpty());
  }
}

// S23: torchrun's spellings.
TEST(OptionsTest, TorchrunsCommandLineIsUnderstood) {
  const Options options = Parsed({"--standalone", "--nnodes=1", "--nproc_per_node=4", "--node_rank",
                                  "0", "--max-restarts", "2", "train.py", "--nproc", "9", "-x"});
  EXPECT_TRUE(options.torchrun_way);
  EXPECT_THAT(options.program, ElementsAre("train.py", "--nproc", "9", "-x"));
  EXPECT_EQ(options.processes->number, 4u);
  EXPECT_THAT(options.max_restarts, Optional(2u));
  EXPECT_THAT(options.nodes_max, Optional(1u));
}

TEST(OptionsTest, WhatStandsBehindTwoHyphensIsUntouched) {
  const Options options = Parsed({"--nproc", "2", "--", "./a.cfg", "--nproc", "", "--", "--help"});
  EXPECT_FALSE(options.torchrun_way);
  EXPECT_EQ(options.command, Command::kRun);
  EXPECT_THAT(options.program, ElementsAre("./a.cfg", "--nproc", "", "--", "--help"));
}

TEST(OptionsTest, HelpAndVersionOfAProgramAreItsOwn) {
  EXPECT_EQ(Parsed({"./trainer", "--help"}).command, Command::kRun);
  EXPECT_EQ(Parsed({"./trainer", "--version"}).command, Command::kRun);
  EXPECT_EQ(Parsed({"--version"}).command, Command::kVersion);
}

TEST(OptionsTest, ProcessesMayBeCountedByTheMachine) {
  EXPECT_EQ(Parsed({"--nproc", "gpu", "a.cfg"}).processes->kind, Processes::Kind::kGpus);
  EXPECT_EQ(Parsed({"--nproc-per-node", "cpu", "a.cfg"}).processes->kind, Processes::Kind::kCpus);
  EXPECT_EQ(Parsed({"--nproc=auto", "a.cfg"}).processes->kind, Processes::Kind::kAuto);
  EXPECT_FALSE(Parsed({"a.cfg"}).processes.has_value());
}

TEST(OptionsTest, SetRepeatsAndKeepsItsOrder) {
  const Options options = Parsed({"--set", "train.lr=0.1", "a.cfg", "--set=data.dir=/x=y"});
  EXPECT_THAT(options.overrides, ElementsAre("train.lr=0.1", "data.dir=/x=y"));
}

TEST(OptionsTest, TheLastOfTwoValuesCounts) {
  EXPECT_EQ(Parsed({"--nproc", "2", "--nproc_per_node", "4", "a.cfg"}).processes->number, 4u);
}

TEST(OptionsTest, RanksAreListsAndRanges) {
  EXPECT_THAT(Parsed({"--log-ranks", "5,0,2-4", "a.cfg"}).log_ranks,
              Optional(ElementsAre(0, 2, 3, 4, 5)));
  EXPECT_THAT(Parsed({"--log-ranks", "all", "a.cfg"}).log_ranks, Optional(IsEmpty()));
}

TEST(OptionsTest, CoordinatorAndAgentHaveTheirOwnOptions) {
  const Options coordinator =
      Parsed({"coordinator", "--listen", "[::1]:0", "--nnodes", "2:4", "--", "prog", "x"});
  EXPECT_EQ(coordinator.command, Command::kCoordinator);
  EXPECT_EQ(coordinator.listen, "[::1]:0");
  EXPECT_THAT(coordinator.nodes_min, Optional(2u));
  EXPECT_THAT(coordinator.nodes_max, Optional(4u));
  const Options agent = Parsed({"agent", "--coordinator", "h:1", "--node", "n1", "--node-rank=3"});
  EXPECT_EQ(agent.command, Command::kAgent);
  EXPECT_EQ(agent.coordinator, "h:1");
  EXPECT_THAT(agent.node_rank, Optional(3));
}

// A newcomer sees examples before options.
TEST(OptionsTest, HelpBeginsWithExamples) {
  for (const Words& words : {Words{}, Words{"--help"}, Words{"-h"}, Words{"help"},
                             Words{"coordinator", "--help"}, Words{"agent", "--help"}}) {
    const Options options = Parsed(words);
    ASSERT_EQ(options.command, Command::kHelp);
    const size_t examples = options.help.find("Examples");
    const size_t usage = options.help.find("Usage: ddprun");
    const size_t first_option = options.help.find("--nproc,");
    EXPECT_LT(examples, usage);
    EXPECT_LT(usage, first_option);
    EXPECT_NE(first_option, std::string::npos);
  }
}

TEST(OptionsTest, EveryOptionOfACommandIsInItsHelp) {
  const std::pair<unsigned, Words> commands[] = {{kForRun, {"--help"}},
                                                 {kForCoordinator, {"coordinator", "--help"}},
                                                 {kForAgent, {"agent", "--help"}},
                                                 {kForDoctor, {"doctor", "--help"}},
                                                 {kForCkpt, {"ckpt", "--help"}}};
  for (const auto& [bit, words] : commands) {
    const std::string help = Parsed(words).help;
    for (const OptionRow& row : OptionRows()) {
      const std::string name(FirstName(row));
      // Some names stand in several rows, with another text for each command.
      const OptionRow* own = FindOption(name, bit);
      const bool has = own != nullptr && own->group[0] != '\0';
      // Followed by its other names, its value, or its text.
      const bool found = help.find("\n  " + name + " ") != std::string::npos ||
                         help.find("\n  " + name + ", ") != std::string::npos;
      EXPECT_EQ(found, has) << name << " in " << help;
    }
  }
}

struct BadCase {
  Words words;
  std::vector<std::string> says;
};

void ExpectErrors(std::span<const BadCase> cases) {
  for (const BadCase& bad : cases) {
    const std::string error = ErrorOf(bad.words);
    for (const std::string& part : bad.says) {
      EXPECT_THAT(error, HasSubstr(part)) << ::testing::PrintToString(bad.words);
    }
  }
}

TEST(OptionsTest, EveryBadCommandLineHasItsError) {
  const BadCase cases[] = {
      {{"--nproc", "0", "a.cfg"}, {"--nproc 0:", "from 1 to 4096", "gpu"}},
      {{"--nproc", "-1", "a.cfg"}, {"--nproc -1:", "from 1"}},
      {{"--nproc", "four", "a.cfg"}, {"--nproc four:", "auto"}},
      {{"--nproc", "99999999999999999999", "a.cfg"}, {"--nproc 9", "from 1 to 4096"}},
      {{"--nproc"}, {"--nproc:", "value is missing"}},
      {{"--nproc=", "a.cfg"}, {"--nproc:", "value is missing"}},
      {{"--nprocs", "2", "a.cfg"}, {"--nprocs: unknown option", "did you mean --nproc?"}},
      {{"-np", "2", "a.cfg"}, {"-np: unknown option", "did you mean --nproc?"}},
      {{"--max-restart", "2", "a.cfg"}, {"did you mean --max-restarts?"}},
      {{"--rdzv_ids=x", "a.py"}, {"--rdzv_ids: unknown option", "did you mean --rdzv-id?"}},
      {{"--nproc_per", "2", "a.py"}, {"--nproc_per: unknown", "did you mean --nproc-per-node?"}},
      {{"logs", "-x"}, {"-x: unknown option (ddprun logs --help lists all)"}},
      {{"agent", "--nnode", "2"}, {"ddprun agent --help lists all"}},
      {{"--frobnicate", "a.cfg"}, {"--frobnicate: unknown option", "--help"}},
      {{"--resume=yes", "a.cfg"}, {"--resume takes no value"}},
      {{"a.cfg", "b.cfg"}, {"b.cfg", "nothing but options"}},
      {{"a.cfg", "--", "prog"}, {"not both"}},
      {{"--"}, {"--:", "missing"}},
      {{""}, {"empty"}},
      {{"--nproc", "2"}, {"nothing to run", "train.cfg", "-- python3"}},
      {{"--set", "train.lr=1", "--", "prog"}, {"--set train.lr=1", "train.cfg"}},
      {{"--nnodes", "4:2", "a.cfg"}, {"--nnodes 4:2", "minimum is greater"}},
      {{"--nnodes", "x", "a.cfg"}, {"--nnodes x", "MIN:MAX"}},
      {{"--coordinator", "h:1", "a.cfg"}, {"--coordinator h:1", "--nnodes N"}},
      {{"--nnodes", "2", "--coordinator", "h", "a.cfg"}, {"--coordinator h", "HOST:PORT"}},
      {{"--nnodes", "2", "--coordinator", "h:1", "--rdzv-endpoint", "h:1", "a.cfg"},
       {"--coordinator h:1", "--rdzv-endpoint", "give one"}},
      {{"--nnodes", "2", "--standalone", "a.cfg"}, {"--standalone", "one node"}},
      {{"--node", "a b", "a.cfg"}, {"--node a b", "letters"}},
      {{"--on-node-loss", "die", "a.cfg"}, {"--on-node-loss die", "shrink", "wait"}},
      {{"--iface", "eth0", "--advertise-addr", "10.0.0.1", "a.cfg"}, {"--iface eth0", "leave one"}},
      {{"--advertise-addr", "10.0.0.1", "--local-addr", "10.0.0.2", "a.cfg"}, {"give one"}},
      {{"doctor", "x"}, {"x: doctor runs no program", "--peers"}},
      {{"doctor", "--peers", "-x"}, {"--peers -x", "give hosts"}},
      {{"--device", "tpu", "a.cfg"}, {"--device tpu", "auto, cpu or cuda"}},
      {{"--gpus", "0,0", "a.cfg"}, {"--gpus 0,0", "twice"}},
      {{"--gpus", "a", "a.cfg"}, {"--gpus a", "indices or UUIDs"}},
      {{"--gpus", "0", "--device", "cpu", "a.cfg"}, {"--gpus", "no effect"}},
      {{"--grace", "30x", "a.cfg"}, {"--grace 30x", "30m"}},
      {{"--grace", "nan", "a.cfg"}, {"--grace nan", "seconds"}},
      {{"--lease", "-3", "a.cfg"}, {"--lease -3", "seconds"}},
      {{"--max-restarts", "1.5", "a.cfg"}, {"--max-restarts 1.5", "whole number"}},
      {{"--job-id", "../x", "a.cfg"}, {"--job-id ../x", "letters"}},
      {{"--job-id", "latest", "a.cfg"}, {"--job-id latest", "taken"}},
      {{"--log-ranks", "3-1", "a.cfg"}, {"--log-ranks 3-1", "0,4-7"}},
      {{"ps"}, {"ps: this version has no such command", "-- ps"}},
      {{"coordinator", "a.cfg"}, {"--listen: missing"}},
      {{"coordinator", "--listen", "host", "a.cfg"}, {"--listen host", "HOST:PORT"}},
      {{"coordinator", "--listen", "::1:80", "a.cfg"}, {"--listen ::1:80", "brackets"}},
      {{"agent"}, {"--coordinator: missing"}},
      {{"agent", "--coordinator", "h:0"}, {"--coordinator h:0", "HOST:PORT"}},
      {{"agent", "--coordinator", "h:1", "a.cfg"}, {"a.cfg", "coordinator says"}},
      {{"agent", "--coordinator", "h:1", "--resume"}, {"--resume: unknown option"}},
  };
  ExpectErrors(cases);
}

// D3, L48: an option that would have no effect, or contradicts another, is an error.
TEST(OptionsTest, WhatSaysNothingWithSoManyNodesIsAnError) {
  const BadCase cases[] = {
      {{"--nnodes", "1:2", "--coordinator", "h:1", "--node-rank", "2", "a.cfg"},
       {"--node-rank 2", "0 to 1", "--nnodes 1:2", "spare"}},
      {{"--on-node-loss", "wait", "a.cfg"}, {"--on-node-loss", "one node", "--nnodes"}},
      {{"--keep-size", "--", "prog"}, {"--keep-size", "one node"}},
      {{"--tls-ca", "ca.pem", "a.cfg"}, {"--tls-ca", "one node"}},
      {{"--nnodes", "2", "--coordinator", "h:1", "--keep-size", "a.cfg"},
       {"--keep-size", "--nnodes MIN:MAX"}},
      {{"--hosts", "a,b", "--on-node-loss", "shrink", "a.cfg"},
       {"--on-node-loss shrink", "--nnodes MIN:MAX"}},
  };
  ExpectErrors(cases);
}

}  // namespace
}  // namespace ddprun::cli
