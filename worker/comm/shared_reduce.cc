#include "worker/comm/shared_reduce.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/comm/reduce_functions.h"

namespace ddprun {
namespace {

constexpr char kName[] = "ddprun-reduce";
constexpr size_t kHeaderBytes = 4096;  // the random number; slots begin on a page
constexpr size_t kSlots = 2;
constexpr size_t kSegmentBytes = kHeaderBytes + kSlots * SharedReduce::kChunkBytes;
// First byte of the mesh's slots; Gloo's begin with its own small numbers.
constexpr uint64_t kSetUp = uint64_t{0x72} << 56;
constexpr uint64_t kMeeting = uint64_t{0x73} << 56;

// What two ranks must have in common to work on the same operation.
uint64_t MeetingSlot(size_t count, DataType type, ReduceOp op, uint64_t sequence) {
  const uint64_t kind = static_cast<uint64_t>(type) << 4 | static_cast<uint64_t>(op);
  return kMeeting | (sequence & 0xffff) << 40 | (kind & 0xff) << 32 | (count & 0xffffffff);
}

}  // namespace

struct SharedReduce::Offer {
  uint64_t number[2] = {0, 0};
  int64_t pid = 0;
  int64_t fd = -1;
};

std::unique_ptr<SharedReduce> SharedReduce::Create(int rank, int size, bool wanted,
                                                   MessageMesh* mesh) {
  std::unique_ptr<SharedReduce> reduce(new SharedReduce(rank, size, mesh));
  Offer own;
  bool good = wanted && reduce->MakeOwn(&own);
  const std::vector<Offer> offers = reduce->ExchangeOffers(own);
  for (size_t peer = 0; good && peer < offers.size(); ++peer) {
    good = peer == static_cast<size_t>(rank) || reduce->MapPeer(offers[peer], peer);
  }
  return reduce->AllAgree(good) ? std::move(reduce) : nullptr;
}

SharedReduce::~SharedReduce() {
  for (std::byte* segment : segments_) {
    if (segment != nullptr) munmap(segment, kSegmentBytes);
  }
  if (fd_ >= 0) close(fd_);
}

bool SharedReduce::MakeOwn(Offer* offer) {
  segments_.resize(static_cast<size_t>(size_));
  fd_ = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // Memory that is there and stays: a page that is missing later would be a signal, not an error.
  if (fd_ < 0 || fallocate(fd_, 0, 0, kSegmentBytes) != 0) return false;
  if (fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return false;
  if (getrandom(offer->number, sizeof(offer->number), 0) != sizeof(offer->number)) return false;
  void* const memory =
      mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, 0);
  if (memory == MAP_FAILED) return false;
  segments_[static_cast<size_t>(rank_)] = static_cast<std::byte*>(memory);
  std::memcpy(memory, offer->number, sizeof(offer->number));
  offer->pid = getpid();
  offer->fd = fd_;
  return true;
}

bool SharedReduce::MapPeer(const Offer& offer, size_t peer) {
  if (offer.fd < 0) return false;
  const std::string path = absl::StrCat("/proc/", offer.pid, "/fd/", offer.fd);
  // On another machine this number may belong to anything; only a file of the right name is opened.
  char target[64];
  const ssize_t length = readlink(path.c_str(), target, sizeof(target));
  const absl::string_view name(target, length > 0 ? static_cast<size_t>(length) : 0);
  if (!absl::StartsWith(name, absl::StrCat("/memfd:", kName))) return false;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool whole = lseek(fd, 0, SEEK_END) == static_cast<off_t>(kSegmentBytes);
  void* const memory =
      whole ? mmap(nullptr, kSegmentBytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0)
            : MAP_FAILED;
  close(fd);
  if (memory == MAP_FAILED) return false;
  segments_[peer] = static_cast<std::byte*>(memory);
  return std::memcmp(memory, offer.number, sizeof(offer.number)) == 0;
}

std::vector<SharedReduce::Offer> SharedReduce::ExchangeOffers(const Offer& own) {
  std::vector<Offer> offers(static_cast<size_t>(size_));
  int done = 1 - 2 * (size_ - 1);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    mesh_->Receive(peer, kSetUp, &offers[static_cast<size_t>(peer)], sizeof(Offer), &done);
    mesh_->Send(peer, kSetUp, &own, sizeof(Offer), &done);
  }
  mesh_->WaitUntilPositive(done);
  return offers;
}

bool SharedReduce::AllAgree(bool mine) {
  Offer offer;
  offer.fd = mine ? 0 : -1;
  const std::vector<Offer> answers = ExchangeOffers(offer);
  bool all = mine;
  for (size_t peer = 0; peer < answers.size(); ++peer) {
    all = all && (peer == static_cast<size_t>(rank_) || answers[peer].fd == 0);
  }
  return all;
}

void SharedReduce::Meet(uint64_t slot) {
  // What was written to this rank's slot is there before anyone hears of the meeting.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  int done = 1 - 2 * (size_ - 1);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    mesh_->Receive(peer, slot, nullptr, 0, &done);
    mesh_->Send(peer, slot, nullptr, 0, &done);
  }
  mesh_->WaitUntilPositive(done);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::byte* SharedReduce::SlotOf(size_t rank) const {
  return segments_[rank] + kHeaderBytes + chunks_ % kSlots * kChunkBytes;
}

void SharedReduce::AllReduce(void* data, size_t count, DataType type, ReduceOp op,
                             uint64_t sequence) {
  const ReduceFunction reduce = FindReduceFunction(type, op);
  const uint64_t meeting = MeetingSlot(count, type, op, sequence);
  const size_t element = DataTypeBytes(type);
  const auto own = static_cast<size_t>(rank_);
  const auto size = static_cast<size_t>(size_);
  for (size_t begin = 0; begin < count; begin += kChunkBytes / element, ++chunks_) {
    const size_t chunk = std::min(count - begin, kChunkBytes / element);
    std::byte* const at = static_cast<std::byte*>(data) + begin * element;
    const auto share_begin = [&](size_t rank) { return chunk * rank / size * element; };
    std::byte* const slot = SlotOf(own);
    std::memcpy(slot, at, chunk * element);
    Meet(meeting);
    std::byte* const sum = at + share_begin(own);
    const size_t share = share_begin(own + 1) - share_begin(own);
    const auto term = [&](size_t rank) { return SlotOf(rank) + share_begin(own); };
    reduce(sum, term(0), term(1), share / element);
    for (size_t rank = 2; rank < size; ++rank) reduce(sum, sum, term(rank), share / element);
    if (op == ReduceOp::kAvg) DivideBy(sum, share / element, type, size_);
    std::memcpy(slot + share_begin(own), sum, share);
    Meet(meeting);
    for (size_t rank = 0; rank < size; ++rank) {
      if (rank == own) continue;
      std::memcpy(at + share_begin(rank), SlotOf(rank) + share_begin(rank),
                  share_begin(rank + 1) - share_begin(rank));
    }
  }
}

}  // namespace ddprun
