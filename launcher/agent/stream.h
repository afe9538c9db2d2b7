// CoordinatorStream: one attachment of an agent to its coordinator, on two threads of its own (one
// reads, one writes).
//
// It does the handshake: what comes from a coordinator that has not proven the job's secret gets
// no further than here, and the agent's core sees the Welcome at the earliest. Where it cannot come
// about (a coordinator that does not know the secret, plain text to TLS, no ddprun there), the core
// gets a Refusal that says so. Send never blocks. The callbacks come from the reading thread:
// on_message for each message, then on_end once.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/mailbox.h"
#include "ddprun/v1/agent.grpc.pb.h"
#include "launcher/net/proof.h"
#include "launcher/net/security.h"

namespace ddprun::agent {

class CoordinatorStream {
 public:
  // A channel over the network may have to connect first, which is waited for (on the reading
  // thread) for at most so long; then the stream ends, to be tried again.
  static constexpr double kConnectSeconds = 0.5;
  struct Options {
    std::shared_ptr<grpc::Channel> channel;
    bool over_network = false;
    std::string coordinator;  // HOST:PORT, for people and for finding out what is wrong
    net::Security security;
    bool first = true;  // no coordinator has been met yet: one that cannot be one ends the agent
  };
  CoordinatorStream(Options options, std::function<void(v1::CoordinatorMessage)> on_message,
                    std::function<void(std::string reason)> on_end);
  // Writes what is queued; gives the coordinator a second to end the stream, then cuts it off.
  // Joins the threads.
  ~CoordinatorStream();

  // A Hello gets its nonce and time here.
  void Send(v1::AgentMessage message);
  // They travel together.
  void SendAll(std::vector<v1::AgentMessage> messages);
  // Writes what is queued, then tells the coordinator that nothing more comes.
  void FinishWriting() { outgoing_.Close(); }

 private:
  void Read();
  void Write();
  // False: the stream is of no use any more.
  bool Take(v1::CoordinatorMessage message);
  bool Answer(const v1::Challenge& challenge);
  bool CheckWelcome(const v1::Welcome& welcome);
  bool Refuse(v1::Refusal::Kind kind, std::string reason);
  std::string WhyItEnded(const grpc::Status& status);
  std::string Coordinator() const;

  const Options options_;
  const std::function<void(v1::CoordinatorMessage)> on_message_;
  const std::function<void(std::string)> on_end_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentBatch, v1::CoordinatorBatch>> stream_;
  Mailbox<v1::AgentMessage> outgoing_;
  std::mutex mutex_;
  net::ProofSubject subject_;  // of the Hello that was sent
  std::atomic<bool> challenged_{false};
  std::atomic<bool> trusted_{false};  // its Welcome was proven
  std::atomic<bool> timed_out_{false};
  bool refused_ = false;
  std::promise<void> ended_;
  std::thread reader_;
  std::thread writer_;
};

}  // namespace ddprun::agent
