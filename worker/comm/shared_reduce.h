// All-reduce among ranks on one machine, through memory that all of them have mapped: a third of
// the processor time of a ring over loopback, which matters where the ranks compute on that
// processor.
//
// Each rank owns a memfd of two slots; the others open it through /proc/<pid>/fd, and know by a
// random number in it that it is the right one. Nothing lies in /dev/shm, and nothing is left when
// a process dies. A buffer goes through the slots in chunks: every rank copies its chunk into its
// slot, reduces its share of the chunk over all slots in the order of the ranks, puts the result
// into its slot, and takes the other shares from the others' slots. The ranks meet by empty
// messages on the mesh before each reading of others' memory, so deadlines, lost peers and
// interrupts are those of the mesh. With two slots in turn the meetings of a chunk also say that
// nobody reads the chunk before it any more.
//
// Threads: that of the mesh. Errors: MeshError. Determinism: each element is added up in the order
// of the ranks, whatever its place and the number of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/message_mesh.h"

namespace ddprun {

class SharedReduce {
 public:
  // Collective. null on every rank if any of them does not want it, or cannot map the memory of any
  // other: they run on several machines, as different users, or in containers that do not see each
  // other.
  static std::unique_ptr<SharedReduce> Create(int rank, int size, bool wanted, MessageMesh* mesh);
  ~SharedReduce();
  SharedReduce(const SharedReduce&) = delete;
  SharedReduce& operator=(const SharedReduce&) = delete;

  // `sequence`: of the operation, the same on every rank. Ranks that ask for different operations
  // get FAILED_PRECONDITION.
  void AllReduce(void* data, size_t count, DataType type, ReduceOp op, uint64_t sequence);

  static constexpr size_t kChunkBytes = size_t{1} << 20;

 private:
  struct Offer;
  SharedReduce(int rank, int size, MessageMesh* mesh) : rank_(rank), size_(size), mesh_(mesh) {}
  bool MakeOwn(Offer* offer);
  bool MapPeer(const Offer& offer, size_t peer);
  std::vector<Offer> ExchangeOffers(const Offer& own);
  bool AllAgree(bool mine);
  // Returns when every rank has come to the same meeting.
  void Meet(uint64_t slot);
  std::byte* SlotOf(size_t rank) const;

  const int rank_;
  const int size_;
  MessageMesh* const mesh_;
  int fd_ = -1;
  uint64_t chunks_ = 0;               // so far, over all operations: they take the slots in turn
  std::vector<std::byte*> segments_;  // by rank
};

}  // namespace ddprun
