// ReachabilityCheck: whether this node reaches the addresses that its workers are going to use, as
// a step before the workers of a generation over several nodes. Workers that cannot reach each
// other would only hang until the timeout of their library, which names no address.
//
// It connects to rank 0's node and to the next node (order.next_address), all at once and without
// waiting. Any answer counts, also a refused connection: nobody listens there yet. No route, or
// silence for spec.membership.address_check_seconds: this node is unfit (where a neighbour's card
// was not found it asks again, since many nodes that ask at once lose some of their questions), and
// the reason names both addresses. Only numeric addresses are tried, since a look-up of a name
// would block the loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/v1/agent.pb.h"
#include "launcher/agent/preparation.h"

namespace ddprun::agent {

// How this node appears in a reason.
struct OwnAddress {
  std::string node;
  std::string address;
  std::string interface;  // card; "" where it is not known
};

class ReachabilityCheck : public PreparationStep {
 public:
  struct Target {
    std::string who;  // "node a"
    std::string address;
    uint32_t port = 0;
  };
  ReachabilityCheck(std::vector<Target> targets, OwnAddress own, double seconds)
      : targets_(std::move(targets)), own_(std::move(own)), seconds_(seconds) {}
  ~ReachabilityCheck() override;

  PreparationResult Advance(int64_t now_ns) override;
  void Cancel() override { cancelled_ = true; }
  void AddPolls(std::vector<pollfd>* polls) const override;
  int64_t NextDeadlineNs() const override { return cancelled_ ? 0 : deadline_ns_; }

 private:
  struct Attempt {
    size_t target = 0;
    int fd = -1;
    int tries = 1;
  };
  void Begin(int64_t now_ns);
  void Conclude(size_t target, int error);
  void AddProblem(size_t target, const std::string& why);
  PreparationResult Failure(const std::string& reasons) const;

  std::vector<Target> targets_;
  OwnAddress own_;
  double seconds_;
  bool begun_ = false;
  bool cancelled_ = false;
  int64_t deadline_ns_ = 0;
  std::vector<Attempt> waiting_;
  std::vector<std::string> problems_;
  std::string unreachable_;  // the first address that was not reached
};

// Whom this node must reach. Pure.
std::vector<ReachabilityCheck::Target> ReachabilityTargets(const v1::StartWorkers& order);
// Null where nothing is to be checked.
std::unique_ptr<PreparationStep> ReachabilityStep(const v1::StartWorkers& order,
                                                  const OwnAddress& own);

}  // namespace ddprun::agent
