// gRPC's side of the coordinator: streams that translate and post, and nothing else.
//
// Each attached agent has two threads: gRPC's own, which reads, and one that writes what is queued.
// (gRPC's callback API needs fewer threads, but its pollers wake several times a second on an idle
// machine.) AgentStreams keeps the open streams by (node, incarnation); Send queues on a stream and
// never blocks. A stream gets there only after its handshake (admission.h), so nothing that is
// posted comes from a stranger. Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/v1/agent.grpc.pb.h"
#include "ddprun/v1/coordinator.grpc.pb.h"
#include "launcher/coordinator/admission.h"
#include "launcher/coordinator/core.h"
#include "launcher/net/budget.h"

namespace ddprun::coordinator {

class AgentStream;

class AgentStreams {
 public:
  void Add(const std::string& node, const std::string& incarnation,
           std::shared_ptr<AgentStream> stream);
  // Removes this very stream; false when a newer one of the same agent has replaced it.
  bool Remove(const std::string& node, const std::string& incarnation, const AgentStream* stream);
  void Send(const std::string& node, const std::string& incarnation,
            std::vector<v1::CoordinatorMessage> messages);
  // Sends what is queued and nothing more. `cut` also ends the stream, for an agent that may not
  // end it itself.
  void Close(const std::string& node, const std::string& incarnation, bool cut);
  void CloseAll();
  int64_t count();

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<AgentStream>> streams_;
};

// Somebody was not let in.
struct Refused {
  std::string node;  // as it calls itself; "" where it has not come so far
  std::string peer;  // its address
  v1::Refusal refusal;
};

class AgentServiceImpl final : public v1::AgentService::Service {
 public:
  struct Handlers {
    // The ticket is dropped once the event is handled; until then it counts on its sender's budget.
    std::function<void(Event, net::Budget::Ticket)> post;
    std::function<void(Refused)> refused;
    std::function<void(const std::string& grpc_peer)> admitted;  // its connection may stay
  };
  AgentServiceImpl(AgentStreams& streams, Handlers handlers)
      : streams_(streams), handlers_(std::move(handlers)) {}
  // From now on agents are answered; those that came before have waited.
  void Open(Admission admission);
  // Nobody is waited for any more.
  void Close();
  grpc::Status Attach(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorBatch, v1::AgentBatch>* stream) override;

 private:
  class Handshake;
  // Null: none came in time.
  std::shared_ptr<const Admission> WaitForJob();
  bool IsKnown(const v1::Hello& hello);
  void Know(const v1::Hello& hello);

  AgentStreams& streams_;
  Handlers handlers_;
  std::atomic<int> handshakes_{0};
  std::atomic<uint64_t> streams_made_{0};
  std::mutex mutex_;
  std::condition_variable opened_;
  bool closed_ = false;
  std::shared_ptr<const Admission> admission_;
  std::set<std::pair<std::string, std::string>> known_;  // (node, incarnation)
};

// The job's events for those who watch. Thread-safe.
class EventFeed {
 public:
  static constexpr size_t kEventsKept = 100000;  // older ones are in events.jsonl only
  void Append(std::vector<std::string> lines);
  void End();  // no more events; watchers end
  // Waits for the event with this index (or the oldest kept), and takes what else is there: lines
  // of one record. *next follows the last of them. False: the feed is over and holds no such event.
  bool Wait(uint64_t index, v1::EventRecord* record, uint64_t* next);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> events_;
  uint64_t first_ = 0;
  bool ended_ = false;
};

class CoordinatorServiceImpl final : public v1::CoordinatorService::Service {
 public:
  struct Handlers {
    std::function<grpc::Status(const v1::JobSpec&)> submit;
    std::function<void(ControlAsked)> control;
    // Whether a call comes from this process; all others are turned away.
    std::function<bool(const grpc::ServerContext&)> is_local;
  };
  CoordinatorServiceImpl(Handlers handlers, EventFeed& feed)
      : handlers_(std::move(handlers)), feed_(feed) {}
  grpc::Status Submit(grpc::ServerContext* context, const v1::SubmitRequest* request,
                      v1::SubmitResponse* response) override;
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::EventRecord>* writer) override;
  grpc::Status Control(grpc::ServerContext* context, const v1::ControlRequest* request,
                       v1::ControlResponse* response) override;

 private:
  Handlers handlers_;
  EventFeed& feed_;
};

}  // namespace ddprun::coordinator
