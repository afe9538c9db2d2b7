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

  // Gets so many ready for workers like those of this order; those for others are dropped.
  void Provide(size_t count, const v1::StartWorkers& order, const NodeFacts& node);
  // A keeper that is ready for workers like these; nullptr where there is none.
  std::unique_ptr<KeeperProcess> Take(const v1::StartWorkers& order, const NodeFacts& node);
  void Drop() { held_.clear(); }
  bool empty() const { return held_.empty(); }

  // A step that waits until one of Provide's keepers is ready or all have failed.
  std::unique_ptr<PreparationStep> Step();

  void AddPolls(std::vector<pollfd>* polls) const;
  // Reads what the keeper says.
  void Pump();

 private:
  friend class ReserveStep;
  struct Held {
    std::unique_ptr<KeeperProcess> keeper;
    bool ready = false;
  };
  std::string SpecFor(const v1::StartWorkers& order, const NodeFacts& node) const;
  static bool Read(Held* held);

  std::string keeper_path_;
  std::string spec_;  // of all that are held; equal specs serve equal workers
  std::vector<Held> held_;
};

// The spec of a keeper in reserve: the preloader's command and the environment that all workers of
// the node share. Empty: these workers cannot be preloaded. Pure.
std::string MakeReserveSpec(const v1::StartWorkers& order, const NodeFacts& node,
                            const std::string& preload_script);

}  // namespace ddprun::agent
