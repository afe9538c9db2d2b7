#include "launcher/agent/stream.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "launcher/net/batch.h"

namespace ddprun::agent {

namespace {

// gRPC works on a connection only while somebody waits for it. A call that fails fast does not: an
// agent that merely tried again would find a coordinator that has come up after up to 5 s.
void AwaitConnection(grpc::Channel& channel) {
  channel.WaitForConnected(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int>(CoordinatorStream::kConnectSeconds * 1000)));
}

}  // namespace

CoordinatorStream::CoordinatorStream(std::shared_ptr<grpc::Channel> channel, bool over_network,
                                     std::function<void(v1::CoordinatorMessage)> on_message,
                                     std::function<void(std::string reason)> on_end)
    : stub_(v1::AgentService::NewStub(channel)) {
  reader_ = std::thread([this, channel = std::move(channel), over_network,
                         on_message = std::move(on_message), on_end = std::move(on_end)] {
    if (over_network) AwaitConnection(*channel);
    stream_ = stub_->Attach(&context_);
    writer_ = std::thread([this] {
      while (auto batch = net::TakeBatch<v1::AgentBatch>(outgoing_)) {
        if (!stream_->Write(*batch)) return;
      }
      stream_->WritesDone();
    });
    v1::CoordinatorBatch batch;
    while (stream_->Read(&batch)) {
      for (auto& message : *batch.mutable_messages()) on_message(std::move(message));
      batch.Clear();
    }
    outgoing_.Close();
    writer_.join();
    const grpc::Status status = stream_->Finish();
    ended_.set_value();
    on_end(status.ok()
               ? "the coordinator ended the connection"
               : absl::StrCat("the connection to the coordinator broke: ", status.error_message()));
  });
}

CoordinatorStream::~CoordinatorStream() {
  outgoing_.Close();
  constexpr std::chrono::seconds kPatience{1};
  if (ended_.get_future().wait_for(kPatience) != std::future_status::ready) context_.TryCancel();
  reader_.join();
}

}  // namespace ddprun::agent
