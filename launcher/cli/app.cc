#include "launcher/cli/app.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/option_table.h"
#include "launcher/net/text.h"

namespace ddprun::cli {
namespace {

constexpr char kRunHelp[] =
    R"(ddprun starts distributed training, watches it, and starts it again when something fails.

Examples
  NAME --nproc 4 train.cfg
      trains the model that train.cfg describes in 4 processes, on GPUs where there are any
  NAME --nproc 4 train.cfg --set train.lr=0.01
      the same with one key of train.cfg changed
  NAME --nproc gpu -- python3 train.py --epochs 10
      runs a program of your own once for each GPU, with torchrun's environment
      (RANK, WORLD_SIZE, MASTER_ADDR …)
  NAME --nproc gpu train.py --epochs 10
      the same, as torchrun writes it
  NAME --resume
      goes on with the newest run from its newest checkpoint
  NAME --nnodes 2 --coordinator node1:29400 --nproc gpu train.py
      on each of two machines, node1 and another, with the same DDPRUN_SECRET
Ctrl-C stops: the trainer saves a checkpoint first. A second Ctrl-C kills at once.

Usage: NAME [run] [options] (train.cfg | -- program arguments…)
       NAME coordinator --listen HOST:PORT [options] (train.cfg | -- program arguments…)
       NAME agent --coordinator HOST:PORT [options]
       NAME logs [options] [RUN_DIR|JOB_ID]
       NAME doctor [options]
       NAME ckpt ls|show|verify|export|convert|prune [options]
       NAME tokens [options] FILE… -o OUTPUT
       NAME plan [options] train.cfg
)";

constexpr char kCoordinatorHelp[] =
    R"(ddprun coordinator runs a job whose workers are on other machines (or here), each with an agent.

Examples
  NAME coordinator --listen 0.0.0.0:29400 --nnodes 2 train.cfg
      on one machine; prints "listening on HOST:PORT" and waits for two nodes
  NAME agent --coordinator 10.0.0.1:29400 --nproc 8
      on each of the two, 10.0.0.1 being the machine of the coordinator

Usage: NAME coordinator --listen HOST:PORT [options] (train.cfg | -- program arguments…)
)";

constexpr char kAgentHelp[] =
    R"(ddprun agent offers this machine to a coordinator, and runs the workers that it asks for.

Examples
  NAME agent --coordinator 10.0.0.1:29400 --nproc gpu
      one worker for each GPU of this machine

Usage: NAME agent --coordinator HOST:PORT [options]
)";

constexpr char kLogsHelp[] =
    R"(ddprun logs shows what the workers of a run have printed: all ranks in one stream, ordered by time.

Examples
  NAME logs
      of the newest run (runs/latest)
  NAME logs -f --rank 0,2
      two ranks, and what they go on to print until the job ends
  NAME logs runs/my-job --generation 2 --tail 100
      the last 100 lines of each rank of one generation
Lines come behind [node:rank], and are not changed. The files are logs/g<generation>/rank<rank>.log.

Usage: NAME logs [options] [RUN_DIR|JOB_ID]
)";

constexpr char kDoctorHelp[] =
    R"(ddprun doctor looks at this machine, and at others by ssh: what a job needs, and what is in its way.

Examples
  NAME doctor
      one line each, with what it means and the fix where there is something to mend
  NAME doctor --peers node1,node2
      also versions, clocks, names and connections between this machine and those
Exit code 0: nothing stands in the way; 1: there are problems.

Usage: NAME doctor [options]
)";

constexpr char kTokensHelp[] =
    R"(ddprun tokens makes files of tokens from text, for [data] kind = "tokens": one token for each byte (0 to
255), and 256 at the end of each file. [model] vocab_size is then 257.

Examples
  NAME tokens book.txt -o train.bin
      one file of tokens
  NAME tokens *.txt -o text --test-fraction 0.1
      text/train.bin, and text/test.bin with the last tenth of the tokens

Usage: NAME tokens [options] FILE… -o OUTPUT
)";

constexpr char kPlanHelp[] =
    R"(ddprun plan says what a train.cfg would take, and starts nothing: parameters, memory of a rank by kind,
samples and steps, communication, learning rates, and what would take less memory.

Examples
  NAME plan --nproc 8 train.cfg
      for 8 ranks; the model is computed here on the CPU with one and two samples
  NAME plan --nproc 8 train.cfg --set data.batch_size=256
      with one key of train.cfg changed

Usage: NAME plan [options] train.cfg
)";

constexpr char kCkptHelp[] =
    R"(ddprun ckpt looks after checkpoints, and turns weights into files for other programs and back.

Examples
  NAME ckpt ls
      the checkpoints of the newest run (runs/latest): step, age, size, number of ranks, state
  NAME ckpt show 400
      what the checkpoint of step 400 holds: where training stood, tensors, digest
  NAME ckpt verify
      reads every byte of all of them; exit code 1 names the file that is damaged
  NAME ckpt export 400 -o model.safetensors --dtype bf16
      its weights in one file under PyTorch's names
  NAME ckpt convert ddp.safetensors -o model.safetensors --prefix-strip module.
      weights that another program has saved, for [model] weights in train.cfg
  NAME ckpt prune --keep 3 runs/my-job
      removes all but the newest 3 and the best one

Usage: NAME ckpt ls [options] [RUN_DIR|JOB_ID]
       NAME ckpt show [options] [STEP|best|PATH]
       NAME ckpt verify [options] [STEP|best|PATH…]
       NAME ckpt export -o FILE [options] [STEP|best|PATH]
       NAME ckpt convert -o FILE [options] FILE|INDEX|FOLDER
       NAME ckpt prune --keep N [options] [RUN_DIR|JOB_ID]
)";

unsigned BitOf(Command command) {
  switch (command) {
    case Command::kCoordinator:
      return kForCoordinator;
    case Command::kAgent:
      return kForAgent;
    case Command::kLogs:
      return kForLogs;
    case Command::kDoctor:
      return kForDoctor;
    case Command::kTokens:
      return kForTokens;
    case Command::kCkpt:
      return kForCkpt;
    case Command::kPlan:
      return kForPlan;
    case Command::kRun:
    case Command::kHelp:
    case Command::kVersion:
      return kForRun;
  }
  return kForRun;
}

constexpr size_t kTextColumn = 26;
constexpr size_t kColumns = 96;

// Cuts `text` between words; each line begins in the text column.
std::string Wrapped(const std::string& text) {
  std::string lines;
  size_t column = kTextColumn;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > kTextColumn && column + 1 + word.size() > kColumns) {
      absl::StrAppend(&lines, "\n", std::string(kTextColumn, ' '));
      column = kTextColumn;
    } else if (column > kTextColumn) {
      lines += ' ';
      ++column;
    }
    absl::StrAppend(&lines, word);
    column += word.size();
  }
  return lines + "\n";
}

// Our own usage lines stand in the description, examples first; CLI11 2.1 does not wrap lines.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override { return ""; }
  std::string make_group(std::string group, bool,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = absl::StrCat("\n", group, "\n");
    for (const CLI::Option* option : options) text += make_option(option, false);
    return text;
  }
  std::string make_option(const CLI::Option* option, bool) const override {
    const std::string names = absl::StrReplaceAll(option->get_name(false, true), {{",", ", "}});
    std::string head = absl::StrCat("  ", names);
    if (option->get_items_expected_max() > 0) absl::StrAppend(&head, " ", option->get_type_name());
    if (head.size() + 2 > kTextColumn) {
      absl::StrAppend(&head, "\n", std::string(kTextColumn, ' '));
    } else {
      head.resize(kTextColumn, ' ');
    }
    return head + Wrapped(option->get_description());
  }
};

std::unique_ptr<CLI::App> MakeApp(Command command) {
  auto app = std::make_unique<CLI::App>();
  app->set_help_flag();  // --help is a row like any other
  for (const OptionRow& row : OptionRows()) {
    if ((row.commands & BitOf(command)) == 0) continue;
    CLI::Option* option = nullptr;
    if (row.value[0] == '\0') {
      option = app->add_flag(row.names, row.text);
    } else {
      option = app->add_option(
          row.names, CLI::callback_t([](const CLI::results_t&) { return true; }), row.text);
      option->type_name(row.value);
      option->multi_option_policy(row.repeats ? CLI::MultiOptionPolicy::TakeAll
                                              : CLI::MultiOptionPolicy::TakeLast);
    }
    option->group(row.group);
  }
  return app;
}

}  // namespace

std::string HelpText(Command command, const std::string& name) {
  const char* text = command == Command::kCoordinator ? kCoordinatorHelp
                     : command == Command::kAgent     ? kAgentHelp
                     : command == Command::kLogs      ? kLogsHelp
                     : command == Command::kDoctor    ? kDoctorHelp
                     : command == Command::kCkpt      ? kCkptHelp
                     : command == Command::kTokens    ? kTokensHelp
                     : command == Command::kPlan      ? kPlanHelp
                                                      : kRunHelp;
  std::unique_ptr<CLI::App> app = MakeApp(command);
  app->formatter(std::make_shared<HelpFormatter>());
  return absl::StrCat(absl::StrReplaceAll(text, {{"NAME", name}}), app->help());
}

absl::Status ApplyOptions(const std::vector<std::string>& arguments, Options* options) {
  std::unique_ptr<CLI::App> app = MakeApp(options->command);
  try {
    // CLI11 takes them from the back.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  for (const OptionRow& row : OptionRows()) {
    const std::string name(LongName(row));
    const CLI::Option* option = app->get_option_no_throw(name);
    if (option == nullptr || option->count() == 0 || row.set == nullptr) continue;
    const CLI::results_t& values = option->results();
    const size_t first = row.repeats ? 0 : values.size() - 1;
    for (size_t i = first; i < values.size(); ++i) {
      absl::Status status = row.set(values[i], options);
      if (!status.ok())
        return absl::InvalidArgumentError(
            absl::StrCat(name, " ", net::Shown(values[i]), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace ddprun::cli
