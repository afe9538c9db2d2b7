#include "worker/comm/gloo_transport.h"

#include <chrono>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gloo/transport/context.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/unbound_buffer.h"

namespace ddprun {
namespace {

using gloo::transport::UnboundBuffer;

class MeshBuffer : public UnboundBuffer {
 public:
  MeshBuffer(MessageMesh* mesh, void* data, size_t bytes)
      : UnboundBuffer(data, bytes), mesh_(mesh) {}

  void send(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    if (bytes == kUnspecifiedByteCount) bytes = size - offset;
    mesh_->Send(peer, slot, static_cast<const char*>(ptr) + offset, bytes, &sent_);
  }

  void recv(int peer, uint64_t slot, size_t offset, size_t bytes) override {
    if (bytes == kUnspecifiedByteCount) bytes = size - offset;
    mesh_->Receive(peer, slot, static_cast<char*>(ptr) + offset, bytes, &received_);
  }

  // From any of several peers: no algorithm in use does that.
  void recv(std::vector<int>, uint64_t, size_t, size_t) override {
    throw std::logic_error("receive from any peer is not supported");
  }

  // The deadline is that of the whole operation and lies in the mesh.
  bool waitSend(int*, std::chrono::milliseconds) override {
    mesh_->WaitUntilPositive(sent_);
    --sent_;
    return true;
  }

  bool waitRecv(int*, std::chrono::milliseconds) override {
    mesh_->WaitUntilPositive(received_);
    --received_;
    return true;
  }

  // The mesh is interrupted as a whole.
  void abortWaitSend() override {}
  void abortWaitRecv() override {}

 private:
  MessageMesh* const mesh_;
  int sent_ = 0;      // finished sends that nobody has waited for
  int received_ = 0;  // the same for receives
};

// Gloo's collectives check that a pair exists, and use none.
class NoPair : public gloo::transport::Pair {
 public:
  const gloo::transport::Address& address() const override { throw Unused(); }
  void connect(const std::vector<char>&) override { throw Unused(); }
  void close() override {}
  void setSync(bool, bool) override { throw Unused(); }
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void*, size_t) override {
    throw Unused();
  }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void*, size_t) override {
    throw Unused();
  }
  void send(UnboundBuffer*, uint64_t, size_t, size_t) override { throw Unused(); }
  void recv(UnboundBuffer*, uint64_t, size_t, size_t) override { throw Unused(); }

 private:
  static std::logic_error Unused() { return std::logic_error("pairs of Gloo are not used"); }
};

class MeshTransport : public gloo::transport::Context {
 public:
  MeshTransport(int rank_in, int size_in, MessageMesh* mesh)
      : gloo::transport::Context(rank_in, size_in), mesh_(mesh) {
    for (int peer = 0; peer < size_in; ++peer) createPair(peer);
  }

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    auto& pair = pairs_.at(static_cast<size_t>(peer));
    pair = std::make_unique<NoPair>();
    return pair;
  }

  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* data, size_t bytes) override {
    return std::make_unique<MeshBuffer>(mesh_, data, bytes);
  }

 private:
  MessageMesh* const mesh_;
};

class MeshContext : public gloo::Context {
 public:
  MeshContext(int rank_in, int size_in, MessageMesh* mesh) : gloo::Context(rank_in, size_in) {
    transportContext_ = std::make_shared<MeshTransport>(rank_in, size_in, mesh);
  }
};

}  // namespace

std::shared_ptr<gloo::Context> MakeGlooContext(int rank, int size, MessageMesh* mesh) {
  return std::make_shared<MeshContext>(rank, size, mesh);
}

}  // namespace ddprun
