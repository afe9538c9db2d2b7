// AgentService: all streams of agents, on one thread of gRPC's asynchronous interface. (Its
// synchronous one takes two threads for each agent; the pollers of its callbacks wake several
// times a second on an idle machine.)
//
// Life: Register → the server is built → Start → Open → … → Close → the server's Shutdown → Stop.
// Streams are kept by (node, incarnation) from the end of their handshake on. Thread-safe; Send
// never blocks.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddprun/v1/agent.grpc.pb.h"
#include "launcher/coordinator/admission.h"
#include "launcher/coordinator/agent_stream.h"
#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

// Somebody was not let in.
struct Refused {
  std::string node;  // as it calls itself; "" where it has not come so far
  std::string peer;  // its address
  v1::Refusal refusal;
};

// Dropped once an event is handled: its sender may have so much on its way, and is not read beyond.
using Ticket = std::shared_ptr<void>;

class AgentService {
 public:
  struct Handlers {
    // In order. They share the ticket.
    std::function<void(std::vector<Event>, Ticket)> post;
    std::function<void(Refused)> refused;
    std::function<void(const std::string& grpc_peer)> admitted;  // its connection may stay
  };
  explicit AgentService(Handlers handlers) : handlers_(std::move(handlers)) {}
  ~AgentService() { Stop(); }

  void Register(grpc::ServerBuilder& builder);
  void Start();
  // From now on agents are answered; those that came before have waited.
  void Open(Admission admission);
  // Nobody waits for a job any more; each stream ends when its agent does, or the server.
  void Close();
  // REQUIRES: the server is shut down.
  void Stop();

  void Send(const std::string& node, const std::string& incarnation,
            std::vector<v1::CoordinatorMessage> messages);
  void CloseStream(const std::string& node, const std::string& incarnation, bool cut);
  int64_t count();

  // ---- for AgentStream, on this service's thread

  const Handlers& handlers() const { return handlers_; }
  void Arrived(const std::shared_ptr<AgentStream>& stream);
  bool IsKnown(const v1::Hello& hello) const;
  // It is let in: returns its number. `context` is that of its call.
  uint64_t Admit(const v1::Hello& hello, const std::string& grpc_peer,
                 std::shared_ptr<AgentStream> stream);
  void LeaveHandshake(AgentStream& stream);
  // False when a newer stream of the same agent has replaced this one.
  bool Remove(const std::string& node, const std::string& incarnation, const AgentStream* stream);
  void Ended();

 private:
  using Key = std::pair<std::string, std::string>;  // node, incarnation

  void Loop();
  void AwaitNext();
  // Ends those whose time is over; the moment at which the next one's is.
  gpr_timespec EndOverdue();
  std::shared_ptr<AgentStream> Find(const std::string& node, const std::string& incarnation);

  const Handlers handlers_;
  v1::AgentService::AsyncService grpc_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;

  // Of the thread.
  std::deque<std::shared_ptr<AgentStream>> young_;  // not answered yet, by their deadlines
  std::set<Key> known_;
  uint64_t streams_made_ = 0;

  std::atomic<int> handshakes_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::shared_ptr<const Admission> admission_;
  std::vector<std::shared_ptr<AgentStream>> waiting_;  // for a job
  std::map<Key, std::shared_ptr<AgentStream>> streams_;
  int64_t living_ = 0;  // streams that have not ended
};

}  // namespace ddprun::coordinator
