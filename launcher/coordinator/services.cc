#include "launcher/coordinator/services.h"

#include <algorithm>
#include <atomic>

namespace ddprun::coordinator {
namespace {

// Writes events from `next_` on as they come; ends when the feed ends. Deletes itself in OnDone.
class Watcher final : public grpc::ServerWriteReactor<v1::EventRecord> {
 public:
  Watcher(EventFeed& feed, uint64_t from) : feed_(feed), next_(from), alive_(new Alive{this}) {
    Pump();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return EndOnce();
    Pump();
  }
  void OnCancel() override { EndOnce(); }
  void OnDone() override {
    {
      std::lock_guard lock(alive_->mutex);
      alive_->watcher = nullptr;
    }
    delete this;
  }

 private:
  // Outlives the watcher, for callbacks of the feed that come late. Recursive, because the feed may
  // call back at once.
  struct Alive {
    explicit Alive(Watcher* w) : watcher(w) {}
    std::recursive_mutex mutex;
    Watcher* watcher;
  };

  void Pump() {
    bool ended = false;
    if (feed_.Get(next_, &record_, &ended)) {
      next_ = record_.index() + 1;
      StartWrite(&record_);
    } else if (ended) {
      EndOnce();
    } else {
      feed_.WhenReady(next_, [alive = alive_] {
        std::lock_guard lock(alive->mutex);
        if (alive->watcher != nullptr) alive->watcher->Pump();
      });
    }
  }
  void EndOnce() {
    if (!ended_.exchange(true)) Finish(grpc::Status::OK);
  }

  EventFeed& feed_;
  uint64_t next_;
  v1::EventRecord record_;
  std::atomic<bool> ended_{false};
  std::shared_ptr<Alive> alive_;
};

}  // namespace

void EventFeed::Append(std::string json) {
  std::vector<std::function<void()>> waiting;
  {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(json));
    if (events_.size() > kEventsKept) {
      events_.pop_front();
      ++first_;
    }
    waiting.swap(waiting_);
  }
  for (auto& reader : waiting) reader();
}

void EventFeed::End() {
  std::vector<std::function<void()>> waiting;
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    waiting.swap(waiting_);
  }
  for (auto& reader : waiting) reader();
}

void EventFeed::WhenReady(uint64_t index, std::function<void()> reader) {
  {
    std::lock_guard lock(mutex_);
    if (!ended_ && index >= first_ + events_.size()) {
      waiting_.push_back(std::move(reader));
      return;
    }
  }
  reader();
}

bool EventFeed::Get(uint64_t index, v1::EventRecord* record, bool* ended) {
  std::lock_guard lock(mutex_);
  index = std::max(index, first_);
  if (index < first_ + events_.size()) {
    record->set_index(index);
    record->set_json(events_[index - first_]);
    return true;
  }
  *ended = ended_;
  return false;
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::Submit(grpc::CallbackServerContext* context,
                                                         const v1::SubmitRequest* request,
                                                         v1::SubmitResponse* response) {
  auto* reactor = context->DefaultReactor();
  response->set_job_id(request->spec().job_id());
  reactor->Finish(handlers_.submit(request->spec()));
  return reactor;
}

grpc::ServerWriteReactor<v1::EventRecord>* CoordinatorServiceImpl::Watch(
    grpc::CallbackServerContext* /*context*/, const v1::WatchRequest* request) {
  return new Watcher(feed_, request->from_index());
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::Control(grpc::CallbackServerContext* context,
                                                          const v1::ControlRequest* request,
                                                          v1::ControlResponse* /*response*/) {
  auto* reactor = context->DefaultReactor();
  handlers_.control(ControlAsked{request->action(), request->signal()});
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace ddprun::coordinator
