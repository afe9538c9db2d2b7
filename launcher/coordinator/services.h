// gRPC's side of the coordinator: streams that translate and post, and nothing else.
//
// Each attached agent has two threads: gRPC's own, which reads, and one that writes what is queued.
// (gRPC's callback API needs fewer threads, but its pollers wake several times a second on an idle
// machine.) AgentStreams keeps the open streams by (node, incarnation); Send queues on a stream and
// never blocks. Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ddprun/v1/agent.grpc.pb.h"
#include "ddprun/v1/coordinator.grpc.pb.h"
#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

class AgentStream;

class AgentStreams {
 public:
  void Add(const std::string& node, const std::string& incarnation,
           std::shared_ptr<AgentStream> stream);
  // Removes this very stream; false when a newer one of the same agent has replaced it.
  bool Remove(const std::string& node, const std::string& incarnation, const AgentStream* stream);
  void Send(const std::string& node, const std::string& incarnation,
            v1::CoordinatorMessage message);
  // Sends what is queued and nothing more. `cut` also ends the stream, for an agent that may not
  // end it itself.
  void Close(const std::string& node, const std::string& incarnation, bool cut);
  void CloseAll();

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<AgentStream>> streams_;
};

class AgentServiceImpl final : public v1::AgentService::Service {
 public:
  AgentServiceImpl(AgentStreams& streams, std::function<void(Event)> post)
      : streams_(streams), post_(std::move(post)) {}
  grpc::Status Attach(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorBatch, v1::AgentBatch>* stream) override;

 private:
  AgentStreams& streams_;
  std::function<void(Event)> post_;
};

// The job's events for those who watch. Thread-safe.
class EventFeed {
 public:
  static constexpr size_t kEventsKept = 100000;  // older ones are in events.jsonl only
  void Append(std::string json);
  void End();  // no more events; watchers end
  // Waits for the event with this index (or the oldest kept). False: the feed is over and holds no
  // such event.
  bool Wait(uint64_t index, v1::EventRecord* record);

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
