// One attached agent: gRPC's thread reads, a thread of the stream's own writes.
#include <atomic>
#include <thread>

#include "common/mailbox.h"
#include "launcher/coordinator/services.h"
#include "launcher/net/batch.h"

namespace ddprun::coordinator {

class AgentStream {
 public:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorBatch, v1::AgentBatch>;

  AgentStream(grpc::ServerContext* context, Stream* stream) : context_(context) {
    writer_ = std::thread([this, stream] {
      while (auto batch = net::TakeBatch<v1::CoordinatorBatch>(outgoing_)) {
        if (!stream->Write(*batch)) return;
      }
      if (cut_) context_->TryCancel();
    });
  }

  void Send(v1::CoordinatorMessage message) { outgoing_.Post(std::move(message)); }
  void Close(bool cut) {
    cut_ = cut_ || cut;
    outgoing_.Close();
  }
  // Before gRPC takes context and stream away.
  void Join() {
    outgoing_.Close();
    writer_.join();
  }

 private:
  grpc::ServerContext* context_;
  Mailbox<v1::CoordinatorMessage> outgoing_;
  std::atomic<bool> cut_{false};
  std::thread writer_;
};

void AgentStreams::Add(const std::string& node, const std::string& incarnation,
                       std::shared_ptr<AgentStream> stream) {
  std::lock_guard lock(mutex_);
  streams_[{node, incarnation}] = std::move(stream);
}

bool AgentStreams::Remove(const std::string& node, const std::string& incarnation,
                          const AgentStream* stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found == streams_.end() || found->second.get() != stream) return false;
  streams_.erase(found);
  return true;
}

void AgentStreams::Send(const std::string& node, const std::string& incarnation,
                        v1::CoordinatorMessage message) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found != streams_.end()) found->second->Send(std::move(message));
}

void AgentStreams::Close(const std::string& node, const std::string& incarnation, bool cut) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found != streams_.end()) found->second->Close(cut);
}

void AgentStreams::CloseAll() {
  std::lock_guard lock(mutex_);
  for (auto& [key, stream] : streams_) stream->Close(false);
}

grpc::Status AgentServiceImpl::Attach(grpc::ServerContext* context, AgentStream::Stream* stream) {
  v1::AgentBatch batch;
  if (!stream->Read(&batch)) return grpc::Status::OK;
  if (batch.messages().empty() || batch.messages(0).hello().node().empty()) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                        "the first message must be Hello with a node name");
  }
  const std::string node = batch.messages(0).hello().node();
  const std::string incarnation = batch.messages(0).hello().incarnation();
  auto self = std::make_shared<AgentStream>(context, stream);
  streams_.Add(node, incarnation, self);
  do {
    for (auto& message : *batch.mutable_messages()) {
      post_(NodeMessage{node, incarnation, std::move(message)});
    }
    batch.Clear();
  } while (stream->Read(&batch));
  if (streams_.Remove(node, incarnation, self.get())) {
    post_(NodeDetached{node, incarnation, "its connection broke"});
  }
  self->Join();
  return grpc::Status::OK;
}

}  // namespace ddprun::coordinator
