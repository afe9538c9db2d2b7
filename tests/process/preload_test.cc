// Preloaded start: a worker that was forked from an interpreter with its modules loaded cannot tell
// that it was not executed, and what fails on the way costs nothing but time. The "torch" of these
// tests is a file beside the script that notes who loads it.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/process_tree.h"
#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr char kTorch[] = R"(
import os
with open(os.environ["NOTES"] + "/loads", "a") as file:
    file.write(str(os.getpid()) + "\n")
if os.path.exists(os.environ["NOTES"] + "/broken"):
    raise RuntimeError("this torch is broken")
)";

// All that a program can see of how it was started. Fails in its first life.
constexpr char kScript[] = R"(
import os, signal, sys, threading, time
import torch
if __spec__ is None:
    print("file", __file__, "loader", __loader__.name, __loader__.path)
print("name", __name__, __package__, __doc__, getattr(__spec__, "name", None))
print("argv", sys.argv, sys.orig_argv)
print("path", sys.path)
print("main", sys.modules["__main__"].__dict__ is globals(), sorted(globals()))
print("cwd", os.getcwd(), sys.executable, sys.flags)
print("stdout", sys.stdout.isatty(), sys.stdout.line_buffering, sys.stdout.write_through)
numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
print("descriptors", [n for n in numbers if os.path.exists(f"/proc/self/fd/{n}")])
print("stdin", os.readlink("/proc/self/fd/0"))
print("signals", [str(signal.getsignal(n)) for n in (1, 2, 13, 15)])
print("group", os.getpgid(0) == os.getpid(), threading.active_count(), sorted(os.sched_getaffinity(0)))
print("oom", open("/proc/self/oom_score_adj").read().strip())
print("thread", threading.main_thread().native_id == os.getpid())
volatile = ("DDPRUN_GENERATION", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
for name, value in sorted(os.environ.items()):
    if name != "_" and name not in volatile and not name.startswith("PADDLE_"):
        print("environment", name, value)
print("comm", open(f"/proc/{os.getppid()}/comm").read().strip())
def fail():
    raise ValueError("no luck")
# The first life ends when all have said everything.
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    mark = os.environ["DDPRUN_RUN_DIR"] + "/done"
    open(mark + os.environ["RANK"], "w").close()
    while not all(os.path.exists(mark + str(rank)) for rank in range(2)):
        time.sleep(0.01)
    while os.environ["RANK"] != "0":
        time.sleep(1)
    fail()
)";

class PreloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / "ddprun-preload-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    fs::create_directories(folder_ + "/package");
    fs::create_directories(folder_ + "/notes");
    Write("torch.py", kTorch);
    Write("script.py", kScript);
    Write("package/__init__.py", "");
    Write("package/module.py", kScript);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::map<std::string, std::string> Environment() {
    return {{"NOTES", folder_ + "/notes"}, {"PYTHONPATH", folder_}};
  }
  std::vector<std::string> Command(const std::string& preload, std::vector<std::string> program) {
    std::vector<std::string> arguments = {"--preload", preload, "--job-id", "same", "--"};
    arguments.insert(arguments.end(), program.begin(), program.end());
    return arguments;
  }
  int Loads() {
    const std::string loads = ReadText(folder_ + "/notes/loads");
    return static_cast<int>(std::count(loads.begin(), loads.end(), '\n'));
  }

  std::string folder_;
};

// The same output, but for the names of the two run folders.
std::string Normalised(Launch& launch, int generation, int rank) {
  std::string text = launch.Log(generation, rank);
  for (size_t at; (at = text.find(launch.folder())) != std::string::npos;) {
    text.replace(at, launch.folder().size(), "FOLDER");
  }
  return text;
}

void ExpectSame(Launch& executed, Launch& preloaded) {
  for (int generation : {1, 2}) {
    for (int rank : {0, 1}) {
      EXPECT_EQ(Normalised(preloaded, generation, rank), Normalised(executed, generation, rank));
    }
  }
}

TEST_F(PreloadTest, AScriptCannotTell) {
  const std::vector<std::string> program = {"python3", "-u", folder_ + "/script.py", "a", "b c"};
  Launch executed(Mode::kTogether, 2, Command("none", program), Environment());
  EXPECT_EQ(executed.Wait().exit_code, 0) << executed.Log(2, 0);
  EXPECT_EQ(Loads(), 4) << "each worker by itself";
  Launch preloaded(Mode::kTogether, 2, Command("auto", program), Environment());
  EXPECT_EQ(preloaded.Wait().exit_code, 0) << preloaded.Log(2, 0);
  EXPECT_GE(Loads(), 4 + 2) << "once for each generation";
  EXPECT_LE(Loads(), 4 + 3) << "and for the one that did not come";
  ExpectSame(executed, preloaded);
  EXPECT_NE(preloaded.Log(2, 0).find("comm ddprun-keeper"), std::string::npos);
}

TEST_F(PreloadTest, AScriptWithoutItsFolderInThePathCannotTell) {
  auto environment = Environment();
  environment["PYTHONSAFEPATH"] = "1";
  const auto with = [&](const char* preload) {
    return Command(preload, {"python3", folder_ + "/script.py"});
  };
  Launch executed(Mode::kTogether, 2, with("none"), environment);
  Launch preloaded(Mode::kTogether, 2, with("auto"), environment);
  EXPECT_EQ(executed.Wait().exit_code, 0);
  EXPECT_EQ(preloaded.Wait().exit_code, 0);
  ExpectSame(executed, preloaded);
}

TEST_F(PreloadTest, AModuleCannotTell) {
  const std::vector<std::string> program = {"python3", "-m", "package.module", "a"};
  auto command = [&](const std::string& preload) { return Command(preload, program); };
  Launch executed(Mode::kTogether, 2, command("none"), Environment());
  EXPECT_EQ(executed.Wait().exit_code, 0) << executed.Log(2, 0);
  const int before = Loads();
  Launch preloaded(Mode::kApart, 2, command("torch"), Environment());
  EXPECT_EQ(preloaded.Wait().exit_code, 0) << preloaded.Log(2, 0);
  EXPECT_LE(Loads(), before + 3);
  ExpectSame(executed, preloaded);
}

// S5: the codes are the worker's own.
TEST_F(PreloadTest, ExitCodesAndSignalsAreTheWorkersOwn) {
  const std::pair<std::string, int> kEnds[] = {
      {"sys.exit(7)", 7},
      {"os._exit(85)", 85},
      {"os.kill(os.getpid(), 9)", 137},
      {"os.abort()", 134},
      {"raise KeyError('x')", 1},
      {"sys.exit('said why')", 1},
      {"raise KeyboardInterrupt", 130},
  };
  for (const auto& [end, code] : kEnds) {
    Write("end.py", "import os, sys\nimport torch\n" + end + "\n");
    auto command = Command("auto", {"python3", folder_ + "/end.py"});
    command.insert(command.begin(), {"--max-restarts", "0"});
    Launch launch(Mode::kTogether, 2, command, Environment());
    EXPECT_EQ(launch.Wait().exit_code, code) << end << "\n" << launch.Log(1, 0);
  }
}

TEST_F(PreloadTest, ModulesThatCannotBeLoadedAreTheProgramsAffair) {
  Write("notes/broken", "");
  auto command = Command("auto", {"python3", folder_ + "/script.py"});
  command.insert(command.begin(), {"--max-restarts", "0"});
  Launch launch(Mode::kTogether, 2, command, Environment());
  EXPECT_EQ(launch.Wait().exit_code, 1);
  // Whichever fails first says so; the other one may be stopped before it can.
  const std::string logs = launch.Log(1, 0) + launch.Log(1, 1);
  EXPECT_NE(logs.find("this torch is broken"), std::string::npos);
  EXPECT_EQ(logs.find("ddprun-preload.py"), std::string::npos);
}

TEST_F(PreloadTest, WithoutASeedEveryRankDrawsNumbersOfItsOwn) {
  Write("torch.py", std::string(kTorch) + R"(
class Generator:
    def seed(self):
        self.seeded_in = os.getpid()
default_generator = Generator()
default_generator.seed()
)");
  Write("draw.py",
        "import os\nimport torch\n"
        "print(torch.default_generator.seeded_in == os.getpid())\n");
  Launch launch(Mode::kTogether, 2, Command("auto", {"python3", folder_ + "/draw.py"}),
                Environment());
  EXPECT_EQ(launch.Wait().exit_code, 0);
  EXPECT_EQ(launch.Log(1, 0), "True\n");
  EXPECT_EQ(launch.Log(1, 1), "True\n");
}

// What it has forked already holds its socket open. Several times: the first two start and die at
// the same time, and which of them is noticed first differs.
TEST_F(PreloadTest, APreloaderThatDiesWhileItForksIsNotAwaited) {
  Write("torch.py", std::string(kTorch) + R"(
import signal
class Fork:
    preloader, forks = os.getpid(), 0
    def __call__(self):
        self.forks += 1
        if os.getpid() == self.preloader and self.forks == 2:
            os.kill(os.getpid(), signal.SIGKILL)
os.register_at_fork(after_in_parent=Fork())
)");
  Write("end.py", "import torch\nprint('here')\n");
  for (int round = 0; round < 12; ++round) {
    Launch launch(Mode::kTogether, 2, Command("auto", {"python3", folder_ + "/end.py"}),
                  Environment());
    ASSERT_EQ(launch.Wait(20).exit_code, 0) << "round " << round;
    ASSERT_EQ(launch.Log(1, 1), "here\n");
  }
}

TEST_F(PreloadTest, AProcessThatCannotBeMadeEndsThePreloadedStart) {
  Write("torch.py", std::string(kTorch) + R"(
real, preloader = os.fork, os.getpid()
def fork():
    if os.getpid() != preloader:
        raise OSError(11, "Resource temporarily unavailable")
    return real()
os.fork = fork
)");
  Write("end.py", "import torch\nprint('here')\n");
  const auto begin = std::chrono::steady_clock::now();
  Launch launch(Mode::kTogether, 1, Command("auto", {"python3", folder_ + "/end.py"}),
                Environment());
  EXPECT_EQ(launch.Wait().exit_code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9));
  EXPECT_EQ(launch.Log(1, 0), "here\n");
}

// A script that waits in its first life until a file is there.
constexpr char kWaiting[] = R"(
import os, time
import torch
print("ready", flush=True)
while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not os.path.exists(os.environ["NOTES"] + "/go"):
    time.sleep(0.01)
)";

// When it was started or forked. Process ids do not tell: they begin again at their limit.
uint64_t StartTicks(pid_t pid) {
  const std::string stat = ReadText("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;  // proc(5)
  return field.empty() ? 0 : std::stoull(field);
}

std::vector<pid_t> Preloaders(const Launch& launch) {
  std::vector<pid_t> found;
  for (pid_t pid : ListDescendants(launch.pid())) {
    const std::string command = ReadText("/proc/" + std::to_string(pid) + "/cmdline");
    if (command.find("ddprun-preload.py") != std::string::npos) found.push_back(pid);
  }
  return found;
}

TEST_F(PreloadTest, APreloaderThatIsKilledCostsNothingButTime) {
  Write("waiting.py", kWaiting);
  Launch launch(Mode::kTogether, 2, Command("auto", {"python3", folder_ + "/waiting.py"}),
                Environment());
  const pid_t worker = launch.WorkerPid(1, 0);
  // The running workers are forks of one too; the others are in reserve.
  const std::vector<pid_t> running = {worker, launch.WorkerPid(1, 1)};
  ASSERT_TRUE(WaitUntil([&] { return Preloaders(launch).size() >= running.size() + 3; }, 20));
  for (pid_t pid : Preloaders(launch)) {
    if (std::find(running.begin(), running.end(), pid) == running.end()) kill(pid, SIGKILL);
  }
  kill(worker, SIGKILL);
  EXPECT_EQ(launch.Wait().exit_code, 0);
  EXPECT_EQ(launch.Result()["generations"], 2);
}

// No line of the program runs twice in a generation, and the job waits two seconds at most.
TEST_F(PreloadTest, AMissingProcessOfTheReserveIsNoticedBeforeAnyWorkerRuns) {
  Write("waiting.py", std::string(kWaiting) +
                          "open(os.environ['NOTES'] + '/lives', 'a').write(os.environ['RANK'])\n");
  for (int signal : {SIGKILL, SIGSTOP}) {
    fs::remove(folder_ + "/notes/lives");
    Launch launch(Mode::kTogether, 3, Command("auto", {"python3", folder_ + "/waiting.py"}),
                  Environment());
    std::vector<pid_t> running;
    for (int rank : {0, 1, 2}) running.push_back(launch.WorkerPid(1, rank));
    // It has forked them all when nobody comes or goes any more for a while.
    std::vector<pid_t> before;
    auto since = std::chrono::steady_clock::now();
    ASSERT_TRUE(WaitUntil(
        [&] {
          const std::vector<pid_t> now = Preloaders(launch);
          if (now != before) since = std::chrono::steady_clock::now();
          before = now;
          return now.size() == running.size() + 4 &&
                 std::chrono::steady_clock::now() - since > std::chrono::milliseconds(500);
        },
        20));
    // The youngest of the others is a worker to be; the first one may be what has forked them.
    std::vector<pid_t> reserve = Preloaders(launch);
    std::erase_if(reserve, [&](pid_t pid) {
      return std::find(running.begin(), running.end(), pid) != running.end();
    });
    const pid_t youngest = *std::max_element(reserve.begin(), reserve.end(), [](pid_t a, pid_t b) {
      return StartTicks(a) < StartTicks(b);
    });
    // Where memory is short, the reserve goes first.
    EXPECT_EQ(ReadText("/proc/" + std::to_string(youngest) + "/oom_score_adj"), "1000\n");
    kill(youngest, signal);
    kill(running[0], SIGKILL);
    EXPECT_EQ(launch.Wait(20).exit_code, 0);
    EXPECT_EQ(ReadText(folder_ + "/notes/lives").size(), 3u);
  }
}

// S1, S2: what is in reserve goes with ddprun, however it ends.
TEST_F(PreloadTest, NothingIsLeftInReserve) {
  Write("waiting.py", kWaiting);
  for (int signal : {SIGKILL, SIGTERM, 0}) {
    fs::remove(folder_ + "/notes/go");
    Launch launch(Mode::kTogether, 2, Command("auto", {"python3", folder_ + "/waiting.py"}),
                  Environment());
    launch.WorkerPid(1, 1);
    ASSERT_TRUE(WaitUntil([&] { return Preloaders(launch).size() >= 5; }, 20));
    const std::vector<pid_t> all = ListDescendants(launch.pid());
    if (signal == 0) {
      Write("notes/go", "");
    } else {
      launch.Signal(signal);
    }
    launch.Wait();
    for (pid_t pid : all) EXPECT_TRUE(WaitGone(pid, 2)) << signal;
  }
}

TEST_F(PreloadTest, OnlyPythonProgramsCanBePreloaded) {
  Launch launch(Mode::kTogether, 1, {"--preload", "torch", "--", "/bin/true"});
  const Finished finished = launch.Wait();
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_NE(finished.output.find("--preload torch"), std::string::npos);
}

}  // namespace
}  // namespace ddprun::testing
