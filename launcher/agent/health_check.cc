#include "launcher/agent/health_check.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/packet.h"
#include "launcher/agent/keeper_facts.h"
#include "launcher/agent/orphans.h"

namespace ddprun::agent {
namespace {

constexpr size_t kReasonLinesMax = 5;
constexpr double kNanosecondsPerSecond = 1e9;

double LimitSeconds(const v1::StartWorkers& order) {
  const double wished = order.spec().supervision().health_check_timeout_seconds();
  return wished > 0 ? wished : kHealthCheckSecondsDefault;
}

std::string MakeHealthCheckSpec(const v1::StartWorkers& order, const std::string& node,
                                const std::string& log_path) {
  const v1::JobSpec& job = order.spec();
  std::map<std::string, std::string> environment(job.environment().begin(),
                                                 job.environment().end());
  environment["DDPRUN_JOB_ID"] = order.job_id();
  environment["DDPRUN_GENERATION"] = absl::StrCat(order.generation());
  environment["DDPRUN_RUN_DIR"] = job.run_dir();
  environment["DDPRUN_NODE"] = node;
  std::string spec;
  const auto add = [&spec](const std::string& key, const std::string& value) {
    spec.append(key).append("=").append(value).push_back('\0');
  };
  add("JOB", order.job_id());
  add("GENERATION", absl::StrCat(order.generation()));
  add("NODE", node);
  add("FOREGROUND", "1");
  add("WORKER", "0");
  for (const std::string& argument :
       {std::string("/bin/sh"), std::string("-c"), job.supervision().health_check()}) {
    add("ARG", argument);
  }
  for (const auto& [name, value] : environment) add("ENV", absl::StrCat(name, "=", value));
  if (!job.working_dir().empty()) add("CWD", job.working_dir());
  add("LOG", log_path);
  add("CONSOLE", "0");
  return spec;
}

}  // namespace

std::string HealthLogPath(const v1::StartWorkers& order, const std::string& node) {
  std::string name = node;
  std::replace(name.begin(), name.end(), '/', '_');
  return absl::StrCat(order.spec().run_dir(), "/logs/g", order.generation(), "/health-", name,
                      ".log");
}

HealthCheck::HealthCheck(const v1::StartWorkers& order, std::string node, std::string keeper_path)
    : order_(order),
      node_(std::move(node)),
      keeper_path_(std::move(keeper_path)),
      log_path_(HealthLogPath(order_, node_)) {}

PreparationResult HealthCheck::Begin(int64_t now_ns) {
  unlink(log_path_.c_str());  // what an earlier one said would count as this one's words
  absl::StatusOr<std::unique_ptr<KeeperProcess>> keeper =
      KeeperProcess::Spawn(keeper_path_, MakeHealthCheckSpec(order_, node_, log_path_));
  if (!keeper.ok()) {
    return {PreparationResult::State::kFailed,
            absl::StrCat("the health check of node ", node_,
                         " could not be started: ", keeper.status().message())};
  }
  keeper_ = std::move(*keeper);
  deadline_ns_ = now_ns + static_cast<int64_t>(LimitSeconds(order_) * kNanosecondsPerSecond);
  return {};
}

PreparationResult HealthCheck::Advance(int64_t now_ns) {
  if (!keeper_) return Begin(now_ns);
  keeper_->Flush();
  // Asked before its last packets are read, so that none is missed.
  const bool dead = keeper_->Reap();
  ReadKeeper(dead);
  if (dead) return Conclude();
  if (!killed_ && now_ns >= deadline_ns_) {
    late_ = !code_;
    Kill();
  }
  return {};
}

void HealthCheck::ReadKeeper(bool dead) {
  std::string bytes;
  bool end = false;
  while (keeper_->Receive(&bytes, &end)) {
    const std::optional<Packet> packet = Packet::Parse(bytes, nullptr);
    if (!packet) continue;
    if (packet->type() == "StartFailed") problem_ = packet->Text("REASON").value_or("unknown");
    if (packet->type() == "Exited") {
      code_ = static_cast<int>(packet->Integer("CODE").value_or(0));
      signal_ = static_cast<int>(packet->Integer("SIGNAL").value_or(0));
    }
    if (packet->type() == "Unkillable") {
      unkillable_.push_back(static_cast<int32_t>(packet->Integer("PID").value_or(0)));
    }
    gone_ = gone_ || packet->type() == "Gone";
  }
  keeper_closed_ = keeper_closed_ || end || dead;
}

PreparationResult HealthCheck::Conclude() {
  if (!gone_) {
    for (int32_t pid : EndOrphans()) unkillable_.push_back(pid);
  }
  const std::string who =
      absl::StrCat("the health check of node ", node_, " ('",
                   order_.spec().supervision().health_check().substr(0, 200), "') ");
  const auto failed = [&](const std::string& what) {
    std::string text = absl::StrCat(who, what);
    std::vector<std::string> lines = LogTail(log_path_);
    if (lines.size() > kReasonLinesMax) lines.erase(lines.begin(), lines.end() - kReasonLinesMax);
    if (!lines.empty()) absl::StrAppend(&text, "; it said: ", absl::StrJoin(lines, " | "));
    return PreparationResult{PreparationResult::State::kFailed, std::move(text)};
  };
  if (!problem_.empty()) return failed(absl::StrCat("could not be started: ", problem_));
  if (late_) return failed(absl::StrCat("was not over after ", LimitSeconds(order_), " s"));
  if (!code_) return failed(killed_ ? "was cancelled" : "ended with its keeper");
  if (signal_ != 0) return failed(absl::StrCat("was killed by SIG", sigabbrev_np(signal_)));
  if (*code_ != 0) return failed(absl::StrCat("exited with code ", *code_));
  return {PreparationResult::State::kReady, ""};
}

void HealthCheck::Kill() {
  killed_ = true;
  keeper_->Send(PacketWriter("Stop").Text("MODE", "kill").Finish());
}

void HealthCheck::Cancel() {
  if (keeper_ && !killed_) Kill();
}

void HealthCheck::AddPolls(std::vector<pollfd>* polls) const {
  if (!keeper_) return;
  polls->push_back({keeper_->pid_fd(), POLLIN, 0});
  if (keeper_closed_) return;
  const short send = keeper_->WantsToSend() ? POLLOUT : 0;
  polls->push_back({keeper_->control_fd(), static_cast<short>(POLLIN | send), 0});
}

}  // namespace ddprun::agent
