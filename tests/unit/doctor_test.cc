// ddprun doctor in bad worlds: what each check says of what it sees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "launcher/cli/doctor_cards.h"
#include "launcher/cli/doctor_checks.h"
#include "launcher/cli/doctor_disk.h"
#include "launcher/cli/doctor_machine.h"
#include "launcher/cli/doctor_network.h"
#include "launcher/cli/doctor_secret.h"
#include "launcher/cli/doctor_software.h"
#include "tests/unit/cli_folder.h"

namespace ddprun::doctor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;

// Every finding that is not ok says what it means and, as a problem, how to mend it.
void ExpectComplete(const Finding& finding) {
  EXPECT_THAT(finding.name, Not(IsEmpty()));
  EXPECT_THAT(finding.seen, Not(IsEmpty())) << finding.name;
  EXPECT_TRUE(finding.level == Level::kOk || !finding.meaning.empty()) << finding.name;
  EXPECT_TRUE(finding.level != Level::kProblem || !finding.fix.empty()) << finding.name;
}

Level WorstOf(const std::vector<Finding>& findings) {
  Level worst = Level::kOk;
  for (const Finding& finding : findings) {
    ExpectComplete(finding);
    worst = std::max(worst, finding.level);
  }
  return worst;
}

const Finding& Named(const std::vector<Finding>& findings, const std::string& name) {
  for (const Finding& finding : findings) {
    if (finding.name == name) return finding;
  }
  ADD_FAILURE() << "no finding named " << name;
  return findings.front();
}

TEST(DoctorMachineTest, SharedMemoryOfAContainerIsAProblem) {  // TR20
  EXPECT_EQ(JudgeSharedMemory({true, true, 64 * kMiB, 64 * kMiB}).level, Level::kProblem);
  EXPECT_THAT(JudgeSharedMemory({true, true, 64 * kMiB, 64 * kMiB}).fix, HasSubstr("--shm-size"));
  EXPECT_EQ(JudgeSharedMemory({true, true, 512 * kMiB, 500 * kMiB}).level, Level::kNote);
  EXPECT_EQ(JudgeSharedMemory({true, true, 16 * kGiB, 15 * kGiB}).level, Level::kOk);
  EXPECT_EQ(JudgeSharedMemory({true, true, 16 * kGiB, 10 * kMiB}).level, Level::kProblem);
  EXPECT_EQ(JudgeSharedMemory({true, false, 16 * kGiB, 15 * kGiB}).level, Level::kProblem);
  EXPECT_EQ(JudgeSharedMemory({}).level, Level::kProblem);
}

// TR20: said before the start, too, where NCCL would need it.
TEST(DoctorMachineTest, AJobOfSeveralGpusIsToldOfTooLittleSharedMemory) {
  const Finding little = JudgeSharedMemory({true, true, 64 * kMiB, 64 * kMiB});
  EXPECT_THAT(
      SharedMemoryNote(little, "cuda", 2),
      AllOf(HasSubstr("/dev/shm has 64 MiB"), HasSubstr("SIGBUS"), HasSubstr("--shm-size")));
  EXPECT_EQ(SharedMemoryNote(little, "cuda", 1), "");
  EXPECT_EQ(SharedMemoryNote(little, "cpu", 2), "");
  EXPECT_EQ(SharedMemoryNote(JudgeSharedMemory({true, true, 16 * kGiB, 15 * kGiB}), "cuda", 2), "");
}

TEST(DoctorMachineTest, LimitsThatAreTooLowAreProblems) {
  EXPECT_EQ(WorstOf(JudgeLimits({})), Level::kOk);
  Limits files;
  files.files = 64;
  files.files_hard = 1048576;
  EXPECT_EQ(Named(JudgeLimits(files), "open files").level, Level::kProblem);
  EXPECT_THAT(Named(JudgeLimits(files), "open files").fix, HasSubstr("ulimit -n 65536"));
  files.files_hard = 64;
  EXPECT_THAT(Named(JudgeLimits(files), "open files").fix, HasSubstr("limits.conf"));
  Limits locked;
  locked.locked_bytes = 64 << 10;
  EXPECT_EQ(Named(JudgeLimits(locked), "locked memory").level, Level::kOk);
  locked.infiniband = true;
  EXPECT_EQ(Named(JudgeLimits(locked), "locked memory").level, Level::kProblem);
  locked.root = true;
  EXPECT_EQ(Named(JudgeLimits(locked), "locked memory").level, Level::kOk);
  Limits processes;
  processes.processes = 100;
  EXPECT_EQ(Named(JudgeLimits(processes), "processes").level, Level::kProblem);
}

TEST(DoctorMachineTest, TheLowestMemoryLimitAboveCounts) {
  cli::Folder folder;
  World world;
  world.root = folder.path();
  folder.Write("proc/self/cgroup", "0::/user/job\n");
  folder.Write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  folder.Write("sys/fs/cgroup/user/memory.max", "2147483648\n");
  folder.Write("sys/fs/cgroup/user/job/memory.max", "max\n");
  const Outcome outcome = CheckCgroup(world);
  ASSERT_EQ(outcome.findings.size(), 1U);
  EXPECT_THAT(outcome.findings[0].seen,
              AllOf(HasSubstr("version 2"), HasSubstr("2.0 GiB"), HasSubstr("/user/memory.max"),
                    HasSubstr("groups can be made")));
}

TEST(DoctorMachineTest, HangReportsNeedTools) {
  EXPECT_EQ(JudgeTools({true, true, 1, false}).level, Level::kOk);
  EXPECT_THAT(JudgeTools({false, true, 1, false}).fix, HasSubstr("py-spy"));
  EXPECT_EQ(JudgeTools({true, true, 3, true}).level, Level::kNote);
  EXPECT_EQ(JudgeTools({true, true, 2, false}).level, Level::kNote);
  EXPECT_EQ(JudgeTools({true, true, 2, true}).level, Level::kOk);
}

TEST(DoctorDiskTest, FileSystemsAreKnownByTheirNumber) {
  std::string name;
  EXPECT_EQ(KindOfFileSystem(0x6969, &name), DiskKind::kNetwork);
  EXPECT_EQ(name, "nfs");
  EXPECT_EQ(KindOfFileSystem(0x01021994, &name), DiskKind::kMemory);
  EXPECT_EQ(KindOfFileSystem(0x794C7630, &name), DiskKind::kOverlay);
  // As a 64-bit long with its sign.
  EXPECT_EQ(KindOfFileSystem(0xFFFFFFFFFF534D42, &name), DiskKind::kNetwork);
  EXPECT_EQ(name, "cifs");
}

Disk GoodDisk() {
  Disk disk;
  disk.folder = "/runs";
  disk.file_system = "ext4";
  disk.bytes_free = 500 * kGiB;
  disk.bytes_written = 64 * kMiB;
  disk.write_seconds = 0.1;
  disk.sync_seconds = 0.001;
  return disk;
}

TEST(DoctorDiskTest, BadDisksAreTold) {
  EXPECT_EQ(WorstOf(JudgeDisk(GoodDisk())), Level::kOk);
  Disk full = GoodDisk();
  full.bytes_free = 100 * kMiB;
  EXPECT_EQ(WorstOf(JudgeDisk(full)), Level::kProblem);
  Disk inodes = GoodDisk();
  inodes.files_free = 3;
  EXPECT_EQ(WorstOf(JudgeDisk(inodes)), Level::kProblem);
  Disk slow = GoodDisk();
  slow.write_seconds = 10;
  EXPECT_EQ(Named(JudgeDisk(slow), "disk speed").level, Level::kNote);
  Disk nfs = GoodDisk();
  nfs.kind = DiskKind::kNetwork;
  nfs.file_system = "nfs";
  EXPECT_EQ(WorstOf(JudgeDisk(nfs)), Level::kOk);
  nfs.lock_error = "No locks available";
  EXPECT_EQ(Named(JudgeDisk(nfs), "file locks").level, Level::kProblem);
  Disk read_only = GoodDisk();
  read_only.write_error = "Read-only file system";
  EXPECT_EQ(WorstOf(JudgeDisk(read_only)), Level::kProblem);
  Disk memory = GoodDisk();
  memory.kind = DiskKind::kMemory;
  EXPECT_EQ(WorstOf(JudgeDisk(memory)), Level::kNote);
}

TEST(DoctorDiskTest, AProbeLeavesNothingAndMakesNoFolder) {
  cli::Folder folder;
  const Disk disk = ProbeDisk(folder / "runs/not/there");
  EXPECT_EQ(disk.folder, folder.path());
  EXPECT_EQ(disk.write_error, "");
  EXPECT_EQ(disk.lock_error, "");
  EXPECT_GT(disk.bytes_written, 0U);
  EXPECT_GT(disk.bytes_free, 0U);
  EXPECT_THAT(folder.All(), IsEmpty());
}

Card Up(const std::string& name, const std::string& address) {
  Card card;
  card.name = name;
  card.up = true;
  card.ipv4 = {address};
  card.loopback = name == "lo";
  return card;
}

TEST(DoctorCardsTest, NcclTakesInfinibandThenOthersThenDockerThenLoopback) {
  const Card lo = Up("lo", "127.0.0.1");
  const Card docker = Up("docker0", "172.17.0.1");
  const Card eth = Up("eth0", "10.0.0.1");
  const Card ib = Up("ib0", "10.1.0.1");
  Card down = Up("eth1", "10.2.0.1");
  down.up = false;
  EXPECT_THAT(ChooseForNccl({lo, docker, eth, ib}, ""), ElementsAre("ib0"));
  EXPECT_THAT(ChooseForNccl({lo, docker, eth, down}, ""), ElementsAre("eth0"));
  EXPECT_THAT(ChooseForNccl({lo, docker}, ""), ElementsAre("docker0"));
  EXPECT_THAT(ChooseForNccl({lo}, ""), ElementsAre("lo"));
  EXPECT_THAT(ChooseForNccl({}, ""), IsEmpty());
}

TEST(DoctorCardsTest, NcclsVariableMatchesBeginningsWholeNamesAndWhatIsLeftOut) {
  const std::vector<Card> cards = {Up("lo", "127.0.0.1"), Up("eth1", "10.0.0.1"),
                                   Up("eth10", "10.1.0.1")};
  EXPECT_THAT(ChooseForNccl(cards, "eth1"), ElementsAre("eth1", "eth10"));
  EXPECT_THAT(ChooseForNccl(cards, "=eth1"), ElementsAre("eth1"));
  EXPECT_THAT(ChooseForNccl(cards, "^lo,eth10"), ElementsAre("eth1"));
  EXPECT_THAT(ChooseForNccl(cards, "enp"), IsEmpty());
}

TEST(DoctorCardsTest, WrongChoicesAreTold) {
  Network network;
  network.cards = {Up("lo", "127.0.0.1"), Up("eth0", "10.0.0.1"), Up("mgmt0", "192.168.0.1")};
  network.default_route = "mgmt0";
  EXPECT_EQ(Named(JudgeCards(network), "NCCL's cards").level, Level::kNote);
  EXPECT_THAT(Named(JudgeCards(network), "NCCL's cards").fix,
              HasSubstr("NCCL_SOCKET_IFNAME==mgmt0"));
  network.socket_ifname = "eth7";
  EXPECT_EQ(Named(JudgeCards(network), "NCCL's cards").level, Level::kProblem);
  network.socket_ifname = "=eth0";
  EXPECT_EQ(Named(JudgeCards(network), "NCCL's cards").level, Level::kOk);
  network.gloo_ifname = "eth9";
  EXPECT_EQ(Named(JudgeCards(network), "Gloo's card").level, Level::kProblem);
  network.ports = {{"mlx5_0", "InfiniBand", "400 Gb/sec (4X NDR)", true},
                   {"mlx5_1", "InfiniBand", "400 Gb/sec (4X NDR)", false}};
  EXPECT_EQ(Named(JudgeCards(network), "InfiniBand").level, Level::kNote);
  network.ports[1].active = true;
  EXPECT_EQ(Named(JudgeCards(network), "InfiniBand").level, Level::kOk);
  network.infiniband_off = true;
  EXPECT_EQ(Named(JudgeCards(network), "InfiniBand").level, Level::kNote);
  Network none;
  none.cards = {Up("lo", "127.0.0.1")};
  EXPECT_EQ(Named(JudgeCards(none), "network cards").level, Level::kNote);
}

TEST(DoctorNetworkTest, PortsThatCannotBeUsedAreTold) {
  const Ports good{
      {{"127.0.0.1", ""}, {"::1", "Cannot assign requested address"}}, 32768, 60999, {}};
  EXPECT_EQ(WorstOf(JudgePorts(good)), Level::kOk);
  Ports no_loopback = good;
  no_loopback.listening[0].error = "Cannot assign requested address";
  EXPECT_EQ(WorstOf(JudgePorts(no_loopback)), Level::kProblem);
  Ports narrow = good;
  narrow.range_last = narrow.range_first + 100;
  EXPECT_EQ(WorstOf(JudgePorts(narrow)), Level::kProblem);
  Ports wide = good;
  wide.range_first = 1024;
  EXPECT_THAT(Named(JudgePorts(wide), "port range").fix, HasSubstr("reserved_ports"));
  Ports taken = good;
  taken.taken = {29400};
  EXPECT_EQ(Named(JudgePorts(taken), "usual ports").level, Level::kNote);
}

TEST(DoctorNetworkTest, NamesThatOtherNodesCannotUseAreTold) {
  EXPECT_EQ(JudgeNames({"a", "", {"10.0.0.1"}, 0.01, "eth0"}).level, Level::kOk);
  EXPECT_THAT(JudgeNames({"a", "", {"127.0.1.1", "::1"}, 0.01, "eth3"}).fix,
              HasSubstr("GLOO_SOCKET_IFNAME=eth3"));
  EXPECT_EQ(JudgeNames({"a", "Name or service not known", {}, 0.01, ""}).level, Level::kNote);
  EXPECT_EQ(JudgeNames({"a", "", {"10.0.0.1"}, 7, "eth0"}).level, Level::kNote);
}

TEST(DoctorNetworkTest, ClocksThatAreNotSynchronisedAreTold) {
  EXPECT_EQ(JudgeClock({true, true, 0.01}).level, Level::kOk);
  EXPECT_EQ(JudgeClock({true, true, 5}).level, Level::kNote);
  EXPECT_EQ(JudgeClock({true, false, 0}).level, Level::kNote);
  EXPECT_EQ(JudgeClock({}).level, Level::kNote);
}

TEST(DoctorNetworkTest, AFirewallThatIsOnIsTold) {
  cli::Folder folder;
  World world;
  world.root = folder.path();
  EXPECT_EQ(CheckFirewall(world).findings[0].level, Level::kOk);
  folder.Write("etc/ufw/ufw.conf", "# x\nENABLED=yes\n");
  EXPECT_EQ(CheckFirewall(world).findings[0].level, Level::kNote);
}

TEST(DoctorSoftwareTest, DriversThatDoNotFitAreTold) {
  Driver none;
  EXPECT_EQ(WorstOf(JudgeDriver(none)), Level::kOk);
  none.gpu_on_bus = true;
  EXPECT_EQ(WorstOf(JudgeDriver(none)), Level::kProblem);
  Driver good{"580.65.06", "NVML", true, {"H200", "H200"}, std::nullopt, "13.0"};
  EXPECT_EQ(WorstOf(JudgeDriver(good)), Level::kOk);
  Driver old = good;
  old.version = "535.104.05";
  EXPECT_EQ(WorstOf(JudgeDriver(old)), Level::kProblem);
  Driver hidden = good;
  hidden.gpus.clear();
  EXPECT_EQ(WorstOf(JudgeDriver(hidden)), Level::kProblem);
  Driver mixed = good;
  mixed.gpus = {"H200", "A100"};
  EXPECT_EQ(WorstOf(JudgeDriver(mixed)), Level::kNote);
}

TEST(DoctorSoftwareTest, ATrainerThatDoesNotStartIsTold) {
  const std::map<std::string, std::string> versions = {{"libtorch", "2.11.0"}, {"cuda", "13.0"}};
  EXPECT_EQ(JudgeWorker({"/b/ddp-worker", true, versions, false, 0, ""}).level, Level::kOk);
  EXPECT_EQ(JudgeWorker({"/b/ddp-worker", false, versions, false, 0, ""}).level, Level::kNote);
  const Finding broken = JudgeWorker({"/b/ddp-worker", true, versions, false, 127,
                                      "libtorch_cpu.so: cannot open shared object\n"});
  EXPECT_EQ(broken.level, Level::kProblem);
  EXPECT_THAT(broken.seen, HasSubstr("libtorch_cpu.so"));
  EXPECT_EQ(JudgeWorker({"/b/ddp-worker", true, versions, true, 0, ""}).level, Level::kNote);
  EXPECT_EQ(JudgeWorker({"/b/ddp-worker", true, {}, false, 0, ""}).level, Level::kNote);
}

TEST(DoctorSoftwareTest, VersionsAreReadFromTheFileBesideTheTrainer) {
  cli::Folder folder;
  folder.Write("ddp-worker.versions", "libtorch=2.11.0\ncuda=13.0\nnonsense\nNCCL=2.28.9\n");
  World world;
  world.binary_folder = folder.path();
  const std::map<std::string, std::string> expected = {
      {"libtorch", "2.11.0"}, {"cuda", "13.0"}, {"nccl", "2.28.9"}};
  EXPECT_EQ(ReadVersions(world), expected);
}

TEST(DoctorSoftwareTest, APythonWithoutTorchIsTold) {
  EXPECT_EQ(JudgePython({"/p", false, false, 0, "3.11.2 torch=2.11.0+cu130 nccl=2.28.9\n"}).level,
            Level::kOk);
  EXPECT_EQ(JudgePython({"/p", false, false, 0, "3.11.2\n"}).level, Level::kNote);
  EXPECT_EQ(JudgePython({"", false, false, 0, ""}).level, Level::kNote);
  EXPECT_EQ(JudgePython({"/p", false, true, 0, ""}).level, Level::kNote);
  EXPECT_EQ(JudgePython({"/p", false, false, 1, "broken"}).level, Level::kProblem);
}

TEST(DoctorSecretTest, ASecretThatOthersCanReadIsAProblem) {
  cli::Folder folder;
  World world;
  EXPECT_EQ(WorstOf(CheckSecrets(world).findings), Level::kOk);
  folder.Write("secret", "0123456789abcdef0123\n", 0600);
  world.environment["DDPRUN_SECRET_FILE"] = folder / "secret";
  const Outcome good = CheckSecrets(world);
  EXPECT_EQ(WorstOf(good.findings), Level::kOk);
  EXPECT_THAT(LineOf(good.findings[0]), Not(HasSubstr("0123456789abcdef")));
  folder.Write("open", "0123456789abcdef0123\n", 0644);
  world.environment["DDPRUN_SECRET_FILE"] = folder / "open";
  EXPECT_EQ(WorstOf(CheckSecrets(world).findings), Level::kProblem);
  world.environment = {{"DDPRUN_SECRET", "short"}};
  EXPECT_NE(WorstOf(CheckSecrets(world).findings), Level::kOk);
  world.environment.clear();
  world.tls_certificate = folder / "none.pem";
  world.tls_key = folder / "none.key";
  EXPECT_EQ(WorstOf(CheckSecrets(world).findings), Level::kProblem);
}

// A disk or a name server that never answers holds its own check alone.
TEST(DoctorChecksTest, ACheckThatDoesNotEndIsAProblemAndHoldsNoOther) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    bool left = false;
  };
  const auto gate = std::make_shared<Gate>();
  const std::vector<Check> checks = {{"stuck",
                                      [gate](const World&) {
                                        std::unique_lock lock(gate->mutex);
                                        gate->changed.wait(lock, [&] { return gate->open; });
                                        gate->left = true;
                                        gate->changed.notify_all();
                                        return Outcome{};
                                      }},
                                     {"quick", [](const World&) {
                                        return Outcome{{Ok("quick", "done")}, {{"a", "b"}}};
                                      }}};
  std::vector<std::string> told;
  const Outcome all = RunChecks(checks, World{}, std::chrono::milliseconds(50),
                                [&](const Finding& finding) { told.push_back(finding.name); });
  EXPECT_THAT(told, ElementsAre("stuck", "quick"));
  EXPECT_EQ(all.findings[0].level, Level::kProblem);
  EXPECT_EQ(all.findings[1].level, Level::kOk);
  EXPECT_EQ(all.facts.at("a"), "b");
  std::unique_lock lock(gate->mutex);
  gate->open = true;
  gate->changed.notify_all();
  gate->changed.wait(lock, [&] { return gate->left; });
}

TEST(DoctorFindingTest, AReportSurvivesJsonAndWhatComesFromOutsideIsMadeHarmless) {
  Report report{"0.2.0", "a", {Problem("x", "bad\x1b[31m", "means", "fix"), Ok("y", "good")}, {}};
  report.facts["cuda"] = "13.0";
  EXPECT_EQ(ExitCodeOf(report.findings), 1);
  EXPECT_EQ(SummaryOf(report.findings), "1 problem, 1 ok");
  EXPECT_EQ(LineOf(report.findings[0]).find('\x1b'), std::string::npos);
  const absl::StatusOr<Report> read = ReportFromJson(ToJson(report).dump());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->version, "0.2.0");
  EXPECT_EQ(read->facts, report.facts);
  ASSERT_EQ(read->findings.size(), 2U);
  EXPECT_EQ(read->findings[0].level, Level::kProblem);
  EXPECT_EQ(read->findings[0].seen.find('\x1b'), std::string::npos);
  for (const char* text : {"", "[]", "{}", "{\"version\":1}", "{\"version\":\"1\",\"checks\":3}",
                           "{\"version\":\"1\",\"checks\":[3]}"}) {
    EXPECT_FALSE(ReportFromJson(text).ok()) << text;
  }
}

}  // namespace
}  // namespace ddprun::doctor
