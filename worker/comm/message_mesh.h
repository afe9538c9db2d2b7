// Messages between one rank and each of its peers, over connected sockets, driven by the thread
// that waits.
//
// A message is a header (slot, length) and its bytes. Between two ranks messages are matched in
// order: the next message from a peer belongs to the oldest receive posted for that peer, and must
// have its slot and length. It is read straight into the receiver's buffer, so nothing is read
// before its receive is posted; TCP holds back a peer that is ahead. There is no thread and no
// callback: a wait moves all sends and receives forward until the one it waits for is done, the
// deadline passes, a peer is lost, or Wake and the interrupt function say stop. Threads: all calls
// belong to one thread, except Wake. Errors: MeshError. The first one is final: every pending
// buffer is forgotten at once, every later call throws it again. Limit: posted and unfinished
// messages have no bound of their own; a collective has a few, a group as many as its members.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/comm/tcp_connect.h"

namespace ddprun {

// Thrown through Gloo's collectives and caught by the communicator.
class MeshError : public std::runtime_error {
 public:
  MeshError(absl::StatusCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  absl::StatusCode code() const { return code_; }

 private:
  absl::StatusCode code_;
};

class MessageMesh {
 public:
  // sockets: by rank, that of `rank` itself empty. interrupt: asked after each Wake; an error ends
  // the wait with it.
  MessageMesh(int rank, std::vector<Descriptor> sockets, std::function<absl::Status()> interrupt);

  // Waits end with DEADLINE_EXCEEDED at this time.
  void set_deadline(absl::Time deadline) { deadline_ = deadline; }

  // Begin to send or receive; *completed is incremented when the buffer is free or filled. Both
  // stay valid until then, or until an error was thrown.
  void Send(int peer, uint64_t slot, const void* data, size_t bytes, int* completed);
  void Receive(int peer, uint64_t slot, void* data, size_t bytes, int* completed);
  void WaitUntilPositive(const int& completed);

  // Waits, without a deadline, for Wake. A peer that is lost meanwhile is an error at once.
  void WaitForWake();
  // From any thread: ends WaitForWake, and lets a wait ask the interrupt function.
  void Wake();

  // Tells all peers that this rank leaves in order, so that the end of the connections is no loss
  // to them.
  void Leave(absl::Duration limit);

 private:
  struct Header {
    uint64_t slot;
    uint64_t bytes;
  };
  struct Outgoing {
    Header header;
    const char* data;
    size_t written;  // of header and data together
    int* completed;  // may be null
  };
  struct Incoming {
    uint64_t slot;
    char* data;
    size_t bytes;
    int* completed;
  };
  struct Peer {
    int rank = -1;
    Descriptor socket;
    std::deque<Outgoing> sends;
    std::deque<Incoming> receives;
    Header header = {};     // of the message that is being read
    size_t read = 0;        // of its header and data together
    bool has_left = false;  // said goodbye
    bool hung_up = false;   // closed its end, but what it sent before has not all been asked for
  };

  void Post(int peer);
  void Poll(absl::Time deadline);
  void HandleEvents(Peer& peer, short events);
  void WriteSome(Peer& peer);
  void ReadSome(Peer& peer);
  // Reads what can be read of the next message. False: nothing more now.
  bool ReadStep(Peer& peer);
  void CheckHeader(const Peer& peer);
  void Closed(Peer& peer, const std::string& reason);
  [[noreturn]] void Throw(absl::StatusCode code, const std::string& message);
  void ThrowIfFailed() const;

  const int rank_;
  const std::function<absl::Status()> interrupt_;
  Descriptor wake_;  // eventfd
  absl::Time deadline_ = absl::InfiniteFuture();
  std::vector<Peer> peers_;
  std::vector<pollfd> polled_;  // by rank; that of the rank itself is wake_
  absl::Status failure_;
};

}  // namespace ddprun
