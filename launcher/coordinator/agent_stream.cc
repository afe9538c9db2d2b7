// One attached agent: a bidirectional stream on gRPC's callback threads.
#include "launcher/coordinator/services.h"

namespace ddprun::coordinator {

// Deletes itself in OnDone. The mutex guards the write queue; reads come one at a time.
class AgentStream final : public grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  // An agent that takes nothing for so long is as good as gone; its lease says the same.
  static constexpr size_t kQueueMax = 200000;

  AgentStream(AgentStreams& streams, std::function<void(Event)> post)
      : streams_(streams), post_(std::move(post)) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Leave();
    if (node_.empty()) {
      if (!incoming_.has_hello() || incoming_.hello().node().empty()) {
        return EndOnce(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                    "the first message must be Hello with a node name"));
      }
      node_ = incoming_.hello().node();
      incarnation_ = incoming_.hello().incarnation();
      streams_.Add(node_, incarnation_, this);
    }
    post_(NodeMessage{node_, incarnation_, std::move(incoming_)});
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void Send(v1::CoordinatorMessage message) {
    std::lock_guard lock(mutex_);
    if (closing_ || queue_.size() >= kQueueMax) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  void OnWriteDone(bool ok) override {
    bool end = false;
    {
      std::lock_guard lock(mutex_);
      queue_.pop_front();
      if (!ok) queue_.clear();
      if (!queue_.empty()) {
        StartWrite(&queue_.front());
      } else {
        end = closing_;
      }
    }
    if (end) EndOnce(grpc::Status::OK);
  }

  // After what is queued.
  void Close() {
    bool end = false;
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      end = queue_.empty();
    }
    if (end) EndOnce(grpc::Status::OK);
  }

  void OnCancel() override { Leave(); }
  void OnDone() override {
    Leave();
    delete this;
  }

 private:
  void Leave() {
    {
      std::lock_guard lock(mutex_);
      if (left_) return;
      left_ = true;
    }
    if (!node_.empty() && streams_.Remove(node_, incarnation_, this)) {
      post_(NodeDetached{node_, incarnation_, "its connection broke"});
    }
    EndOnce(grpc::Status::OK);
  }

  void EndOnce(const grpc::Status& status) {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      if (ended_) return;
      ended_ = true;
    }
    grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>::Finish(status);
  }

  AgentStreams& streams_;
  std::function<void(Event)> post_;
  std::string node_;
  std::string incarnation_;
  v1::AgentMessage incoming_;
  std::mutex mutex_;
  std::deque<v1::CoordinatorMessage> queue_;
  bool closing_ = false;
  bool left_ = false;
  bool ended_ = false;
};

void AgentStreams::Add(const std::string& node, const std::string& incarnation,
                       AgentStream* stream) {
  std::lock_guard lock(mutex_);
  streams_[{node, incarnation}] = stream;
}

bool AgentStreams::Remove(const std::string& node, const std::string& incarnation,
                          AgentStream* stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found == streams_.end() || found->second != stream) return false;
  streams_.erase(found);
  return true;
}

void AgentStreams::Send(const std::string& node, const std::string& incarnation,
                        v1::CoordinatorMessage message) {
  // The lock is held across the call, so that the stream cannot be deleted meanwhile (OnDone
  // removes it first).
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found != streams_.end()) found->second->Send(std::move(message));
}

void AgentStreams::Close(const std::string& node, const std::string& incarnation) {
  AgentStream* stream = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto found = streams_.find({node, incarnation});
    if (found == streams_.end()) return;
    stream = found->second;
    stream->Close();
  }
}

void AgentStreams::CloseAll() {
  std::lock_guard lock(mutex_);
  for (auto& [key, stream] : streams_) stream->Close();
}

grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* AgentServiceImpl::Attach(
    grpc::CallbackServerContext* /*context*/) {
  return new AgentStream(streams_, post_);
}

}  // namespace ddprun::coordinator
