// Reserve: a keeper in reserve on this node, whose preloader has loaded what the workers of the
// next generation need (proto/keeper_protocol.md, "Preloaded start"), so that a restart does not
// wait for every worker to load it again.
//
// A passive object of the agent's loop. It never holds a worker: dropping it costs nothing but the
// time that it would have saved. Used only where spec.launching.preload_modules names something.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "ddprun/v1/agent.pb.h"
#include "launcher/agent/keeper_process.h"
#include "launcher/agent/preparation.h"
#include "launcher/agent/worker_environment.h"

namespace ddprun::agent {

class Reserve {
 public:
  explicit Reserve(std::string keeper_path) : keeper_path_(std::move(keeper_path)) {}

  // Gets one ready for workers like those of this order, unless one is there for them already.
  void Provide(const v1::StartWorkers& order, const NodeFacts& node);
  // The keeper, when it is ready for workers like these; nullptr otherwise, and what was there is
  // dropped.
  std::unique_ptr<KeeperProcess> Take(const v1::StartWorkers& order, const NodeFacts& node);
  void Drop() { keeper_.reset(); }

  // A step that waits until Provide's keeper is ready or has failed.
  std::unique_ptr<PreparationStep> Step();

  void AddPolls(std::vector<pollfd>* polls) const;
  // Reads what the keeper says.
  void Pump();

 private:
  friend class ReserveStep;
  std::string keeper_path_;
  std::string spec_;  // that of the keeper in reserve; equal specs serve equal workers
  std::unique_ptr<KeeperProcess> keeper_;
  bool ready_ = false;
};

// The spec of a keeper in reserve: the preloader's command and the environment that all workers of
// the node share. Empty: these workers cannot be preloaded. Pure.
std::string MakeReserveSpec(const v1::StartWorkers& order, const NodeFacts& node,
                            const std::string& preload_script);

}  // namespace ddprun::agent
