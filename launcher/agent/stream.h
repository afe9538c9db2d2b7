// CoordinatorStream: one attachment of an agent to its coordinator, on two threads of its own (one
// reads, one writes).
//
// Send never blocks. The callbacks come from the reading thread: on_message for each message, then
// on_end once.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "common/mailbox.h"
#include "ddprun/v1/agent.grpc.pb.h"

namespace ddprun::agent {

class CoordinatorStream {
 public:
  // `over_network`: the channel may have to connect first, which is waited for (on the reading
  // thread) for at most kConnectSeconds; then the stream ends, to be tried again.
  static constexpr double kConnectSeconds = 0.5;
  CoordinatorStream(std::shared_ptr<grpc::Channel> channel, bool over_network,
                    std::function<void(v1::CoordinatorMessage)> on_message,
                    std::function<void(std::string reason)> on_end);
  // Writes what is queued; gives the coordinator a second to end the stream, then cuts it off.
  // Joins the threads.
  ~CoordinatorStream();

  void Send(v1::AgentMessage message) { outgoing_.Post(std::move(message)); }
  // Writes what is queued, then tells the coordinator that nothing more comes.
  void FinishWriting() { outgoing_.Close(); }

 private:
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentBatch, v1::CoordinatorBatch>> stream_;
  Mailbox<v1::AgentMessage> outgoing_;
  std::promise<void> ended_;
  std::thread reader_;
  std::thread writer_;
};

}  // namespace ddprun::agent
