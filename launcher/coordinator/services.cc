#include "launcher/coordinator/services.h"

#include <algorithm>

#include "launcher/net/limits.h"

namespace ddprun::coordinator {

void EventFeed::Append(std::vector<std::string> lines) {
  {
    std::lock_guard lock(mutex_);
    for (std::string& line : lines) events_.push_back(std::move(line));
    while (events_.size() > kEventsKept) {
      events_.pop_front();
      ++first_;
    }
  }
  changed_.notify_all();
}

void EventFeed::End() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

bool EventFeed::Wait(uint64_t index, v1::EventRecord* record, uint64_t* next) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || index < first_ + events_.size(); });
  index = std::max(index, first_);
  if (index >= first_ + events_.size()) return false;
  record->set_index(index);
  std::string* lines = record->mutable_json();
  lines->clear();
  for (; index < first_ + events_.size() && lines->size() < net::kBatchBytesMax; ++index) {
    lines->append(lines->empty() ? "" : "\n").append(events_[index - first_]);
  }
  *next = index;
  return true;
}

namespace {

grpc::Status NotLocal() {
  return grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                      "a job is watched and controlled from its own ddprun only");
}

}  // namespace

grpc::Status CoordinatorServiceImpl::Submit(grpc::ServerContext* context,
                                            const v1::SubmitRequest* request,
                                            v1::SubmitResponse* response) {
  if (!handlers_.is_local(*context)) return NotLocal();
  response->set_job_id(request->spec().job_id());
  return handlers_.submit(request->spec());
}

// A watcher that went away is noticed at the next event; the feed's end frees the last of them.
grpc::Status CoordinatorServiceImpl::Watch(grpc::ServerContext* context,
                                           const v1::WatchRequest* request,
                                           grpc::ServerWriter<v1::EventRecord>* writer) {
  if (!handlers_.is_local(*context)) return NotLocal();
  v1::EventRecord record;
  uint64_t next = request->from_index();
  while (feed_.Wait(next, &record, &next)) {
    if (!writer->Write(record)) break;
  }
  return grpc::Status::OK;
}

grpc::Status CoordinatorServiceImpl::Control(grpc::ServerContext* context,
                                             const v1::ControlRequest* request,
                                             v1::ControlResponse* /*response*/) {
  if (!handlers_.is_local(*context)) return NotLocal();
  handlers_.control(ControlAsked{request->action(), request->signal()});
  return grpc::Status::OK;
}

}  // namespace ddprun::coordinator
