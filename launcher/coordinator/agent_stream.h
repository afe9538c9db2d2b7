// One agent's stream, from its arrival to its end: the handshake (admission.h), then facts are
// posted and commands written.
//
// No thread waits for a stream, so that thousands of agents cost a coordinator two threads and not
// thousands. Thread rule: On… are called by the service's thread alone, one at a time; Send and
// Close by any. An operation that gRPC has not answered yet keeps its stream alive.
// Invariants: at most one Read and one Write are pending; Finish is begun once, when neither is;
// nothing is begun after it. Nothing of a stranger is posted.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddprun/v1/agent.grpc.pb.h"
#include "launcher/coordinator/admission.h"

namespace ddprun::coordinator {

class AgentService;

class AgentStream final : public std::enable_shared_from_this<AgentStream> {
 public:
  using Clock = std::chrono::steady_clock;

  // What is called when gRPC is through with an operation; `stream` is empty while there is none.
  struct Operation {
    void (AgentStream::*done)(bool ok);
    std::shared_ptr<AgentStream> stream;
  };

  explicit AgentStream(AgentService& service) : service_(service) {}

  // Becomes the stream of the next agent that comes.
  void AwaitArrival(v1::AgentService::AsyncService& grpc, grpc::ServerCompletionQueue* queue);
  // The job is known: its handshake begins.
  void Begin(std::shared_ptr<const Admission> admission);
  // What is to be said is said, then it ends. REQUIRES: no Read is pending.
  void End(grpc::Status status);

  void Send(std::vector<v1::CoordinatorMessage> messages);
  // Sends what is queued and nothing more. `cut` also ends the stream, for an agent that may not
  // end it itself.
  void Close(bool cut);
  // The core's answer is due by `deadline`.
  bool answered() const { return answered_; }
  Clock::time_point deadline() const { return deadline_; }
  // Its time is over.
  void Cut() { context_.TryCancel(); }
  // Whether this was so; it is not any more.
  bool LeaveHandshake() { return in_handshake_.exchange(false); }

 private:
  enum class Stage { kHello, kAnswer, kAttached };

  void OnArrived(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);

  void OnHello();
  void OnAnswer();
  void OnFacts();
  void OnGone(grpc::Status status);
  void Refuse(const v1::Refusal& refusal);
  // So much of it has been handled.
  void Handled(size_t bytes);
  void Say(v1::CoordinatorMessage message);
  void* Pending(Operation& operation);

  // REQUIRES for these: mutex_ is held.
  void ReadOn();
  void WriteOn();
  void CloseNow(bool cut);

  AgentService& service_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::CoordinatorBatch, v1::AgentBatch> rpc_{&context_};
  Operation arrival_{&AgentStream::OnArrived, nullptr};
  Operation read_{&AgentStream::OnRead, nullptr};
  Operation write_{&AgentStream::OnWritten, nullptr};
  Operation finish_{&AgentStream::OnFinished, nullptr};

  // Of the service's thread.
  Stage stage_ = Stage::kHello;
  Clock::time_point deadline_;
  std::string peer_;
  std::shared_ptr<const Admission> admission_;
  v1::AgentBatch incoming_;
  v1::AgentMessage hello_;
  std::string node_;  // once it is known to be a name
  std::string incarnation_;
  net::ProofSubject subject_;
  uint64_t number_ = 0;

  std::atomic<bool> answered_{false};
  std::atomic<bool> in_handshake_{true};

  std::mutex mutex_;
  std::string proof_;  // of the coordinator, for the Welcome
  std::deque<v1::CoordinatorMessage> outgoing_;
  size_t waiting_bytes_ = 0;    // of outgoing_
  size_t unhandled_bytes_ = 0;  // posted, and not handled yet
  bool read_waits_ = false;     // until enough of them are
  bool writing_ = false;
  bool broken_ = false;  // a Write has failed
  bool closed_ = false;  // nothing more is taken to be said
  bool cut_ = false;     // … and what was taken is said, it is cancelled
  bool ending_ = false;  // … it ends, with this:
  grpc::Status status_;
  bool finishing_ = false;
};

}  // namespace ddprun::coordinator
