// HealthCheck: the user's health check of a node (spec.supervision.health_check), as a step before
// the workers of a generation.
//
// It runs as `sh -c` under a keeper of its own, so that nothing of it outlives its end, its time
// limit, a cancel, or the death of the launcher. What it prints is in
// logs/g<generation>/health-<node>.log. Exit code 0 within the limit: the node is well.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/v1/agent.pb.h"
#include "launcher/agent/keeper_process.h"
#include "launcher/agent/preparation.h"

namespace ddprun::agent {

// Where spec.supervision.health_check_timeout_seconds is 0.
inline constexpr double kHealthCheckSecondsDefault = 60;

class HealthCheck : public PreparationStep {
 public:
  HealthCheck(const v1::StartWorkers& order, std::string node, std::string keeper_path);

  PreparationResult Advance(int64_t now_ns) override;
  void Cancel() override;
  void AddPolls(std::vector<pollfd>* polls) const override;
  int64_t NextDeadlineNs() const override { return killed_ ? 0 : deadline_ns_; }
  std::vector<int32_t> UnkillablePids() const override { return unkillable_; }

 private:
  PreparationResult Begin(int64_t now_ns);
  void ReadKeeper(bool dead);
  void Kill();
  PreparationResult Conclude();

  v1::StartWorkers order_;
  std::string node_;
  std::string keeper_path_;
  std::string log_path_;
  std::unique_ptr<KeeperProcess> keeper_;
  bool keeper_closed_ = false;
  bool killed_ = false;
  bool late_ = false;
  bool gone_ = false;  // the keeper said that nothing is left
  int64_t deadline_ns_ = 0;
  std::string problem_;      // it could not be started
  std::optional<int> code_;  // how it ended
  int signal_ = 0;
  std::vector<int32_t> unkillable_;
};

std::string HealthLogPath(const v1::StartWorkers& order, const std::string& node);

}  // namespace ddprun::agent
