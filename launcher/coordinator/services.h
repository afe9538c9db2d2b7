// The job's own ddprun: it submits, watches and controls the job through gRPC, from this process
// only. Agents: agent_service.h. Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "ddprun/v1/coordinator.grpc.pb.h"
#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

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
