// A swarm: many agents of one job in one process, over real gRPC connections (one for each),
// without keepers and workers. What the agents say is what real ones say at the start of a
// generation; so it shows what a coordinator has to do for thousands of ranks.
//
// Each agent's callbacks come one at a time, from gRPC's threads; Totals is shared by all.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "common/reliable_link.h"
#include "ddprun/v1/agent.grpc.pb.h"
#include "launcher/net/proof.h"
#include "launcher/net/security.h"

namespace ddprun::scale {

struct Totals {
  std::mutex mutex;
  std::condition_variable changed;
  uint32_t welcomed = 0;
  uint32_t ranks_told = 0;  // got rank 0's value
  uint32_t ended = 0;       // agents
  uint32_t failed = 0;      // of them: otherwise than by the job's end
  std::string problem;      // of the first that failed
  uint64_t messages_up = 0;
  uint64_t messages_down = 0;
  uint64_t batches_up = 0;
  uint64_t batches_down = 0;
  uint64_t bytes_up = 0;
  uint64_t bytes_down = 0;
};

class SwarmAgent final : public grpc::ClientBidiReactor<v1::AgentBatch, v1::CoordinatorBatch> {
 public:
  SwarmAgent(const std::string& coordinator, const net::Security& security, uint32_t number,
             uint32_t slots, Totals* totals);

  void Attach();
  // If one is due.
  void Heartbeat(int64_t now_ns);
  // All its ranks are ready; then they end with 0.
  void GetReady();
  void Finish();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  // REQUIRES for all of these: mutex_ is held.
  void Handle(const v1::CoordinatorMessage& message);
  void Challenged(const v1::Challenge& challenge);
  void Started(const v1::StartWorkers& start);
  void Fact(v1::AgentMessage message);
  void Queue(v1::AgentMessage message);
  void WriteQueued();

  net::Security security_;
  uint32_t number_;
  Totals& totals_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;

  std::mutex mutex_;
  v1::Hello hello_;
  net::ProofSubject subject_;
  v1::CoordinatorBatch incoming_;
  v1::AgentBatch queued_;
  v1::AgentBatch outgoing_;
  bool writing_ = false;
  bool gathering_ = false;  // what is queued now goes out as one batch
  bool last_ = false;       // nothing more is to be said
  bool done_saying_ = false;
  bool over_ = false;
  ReliableLink<v1::AgentMessage> link_;
  bool welcomed_ = false;
  double heartbeat_seconds_ = 0;
  int64_t next_heartbeat_ns_ = 0;
  uint64_t heartbeats_ = 0;
  v1::StartWorkers start_;
  bool told_ = false;
};

int64_t NowNs(clockid_t clock);

}  // namespace ddprun::scale
