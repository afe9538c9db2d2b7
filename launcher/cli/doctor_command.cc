// `ddprun doctor`: looks at this machine, and at others over ssh, for what makes jobs fail.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/doctor_answer.h"
#include "launcher/cli/doctor_checks.h"
#include "launcher/cli/doctor_peers.h"

namespace ddprun::cli {
namespace {

std::string Absolute(const std::string& folder, const std::string& path) {
  return path.empty() || path[0] == '/' ? path : JoinPath(folder, path);
}

doctor::World WorldOf(const Options& options) {
  doctor::World world;
  std::error_code error;
  world.environment = EnvironmentOfThisProcess();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  world.binary_folder = ParentPath(self);
  world.working_dir = std::filesystem::current_path(error).string();
  world.run_dir = Absolute(world.working_dir, options.run_dir.value_or("runs"));
  world.advertise_address = options.advertise_address.value_or("");
  world.card = options.interface.value_or("");
  world.tls_certificate = options.tls_certificate;
  world.tls_key = options.tls_key;
  world.tls_authority = options.tls_ca;
  return world;
}

doctor::Report ReportOf(const doctor::World& world,
                        const std::function<void(const doctor::Finding&)>& on_finding) {
  doctor::Report report;
  report.version = DDPRUN_VERSION;
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  report.node = name.data();
  doctor::Outcome outcome =
      doctor::RunChecks(doctor::AllChecks(), world, doctor::kCheckTimeMax, on_finding);
  report.findings = std::move(outcome.findings);
  report.facts = std::move(outcome.facts);
  return report;
}

int Examine(const Options& options, const doctor::World& world) {
  const auto show = [&](const doctor::Finding& finding) {
    if (options.json) return;
    std::puts(doctor::LineOf(finding).c_str());
    std::fflush(stdout);
  };
  doctor::Report report = ReportOf(world, show);
  if (!options.doctor.peers.empty()) {
    doctor::PeerOptions peers;
    peers.ssh = options.ssh_command.value_or(peers.ssh);
    peers.ddprun = JoinPath(world.binary_folder, "ddprun");
    peers.run_dir = world.run_dir;
    const doctor::Report ours = report;
    doctor::AskPeers(options.doctor.peers, peers, ours, [&](const doctor::Finding& finding) {
      show(finding);
      report.findings.push_back(finding);
    });
  }
  if (options.json) {
    std::puts(doctor::ToJson(report)
                  .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                  .c_str());
  } else {
    std::printf("%s\n", doctor::SummaryOf(report.findings).c_str());
  }
  return doctor::ExitCodeOf(report.findings);
}

}  // namespace

int RunDoctor(const Options& options) {
  std::signal(SIGPIPE, SIG_IGN);  // a peer that is gone is an answer that does not come
  const doctor::World world = WorldOf(options);
  int code = 0;
  if (options.doctor.answer) {
    doctor::AnswerQuestions(STDIN_FILENO, STDOUT_FILENO, [&] { return ReportOf(world, nullptr); });
  } else {
    code = Examine(options, world);
  }
  std::fflush(stdout);
  // A check that never ended is left behind in its thread.
  _exit(code);
}

}  // namespace ddprun::cli
