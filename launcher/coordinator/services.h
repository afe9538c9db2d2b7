// gRPC's side of the coordinator: streams that translate and post, and nothing else.
//
// AgentStreams keeps the open streams by (node, incarnation); Send queues on a stream and never
// blocks. Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/v1/agent.grpc.pb.h"
#include "ddprun/v1/coordinator.grpc.pb.h"
#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

class AgentStream;

class AgentStreams {
 public:
  void Add(const std::string& node, const std::string& incarnation, AgentStream* stream);
  // Removes this very stream; false when a newer one of the same agent has replaced it.
  bool Remove(const std::string& node, const std::string& incarnation, AgentStream* stream);
  void Send(const std::string& node, const std::string& incarnation,
            v1::CoordinatorMessage message);
  // Ends the stream after what is queued. The agent reads an end of stream.
  void Close(const std::string& node, const std::string& incarnation);
  void CloseAll();

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, AgentStream*> streams_;
};

class AgentServiceImpl final : public v1::AgentService::CallbackService {
 public:
  AgentServiceImpl(AgentStreams& streams, std::function<void(Event)> post)
      : streams_(streams), post_(std::move(post)) {}
  grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;

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
  // Calls `reader` (from any thread, perhaps at once) when an event with this index or the end is
  // there.
  void WhenReady(uint64_t index, std::function<void()> reader);
  // False when it is not there yet. *ended: the feed is over and holds no such event.
  bool Get(uint64_t index, v1::EventRecord* record, bool* ended);

 private:
  std::mutex mutex_;
  std::deque<std::string> events_;
  uint64_t first_ = 0;
  bool ended_ = false;
  std::vector<std::function<void()>> waiting_;
};

class CoordinatorServiceImpl final : public v1::CoordinatorService::CallbackService {
 public:
  struct Handlers {
    std::function<grpc::Status(const v1::JobSpec&)> submit;
    std::function<void(ControlAsked)> control;
  };
  CoordinatorServiceImpl(Handlers handlers, EventFeed& feed)
      : handlers_(std::move(handlers)), feed_(feed) {}
  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context,
                                   const v1::SubmitRequest* request,
                                   v1::SubmitResponse* response) override;
  grpc::ServerWriteReactor<v1::EventRecord>* Watch(grpc::CallbackServerContext* context,
                                                   const v1::WatchRequest* request) override;
  grpc::ServerUnaryReactor* Control(grpc::CallbackServerContext* context,
                                    const v1::ControlRequest* request,
                                    v1::ControlResponse* response) override;

 private:
  Handlers handlers_;
  EventFeed& feed_;
};

}  // namespace ddprun::coordinator
