#include "launcher/keeper/step_page.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ddprun::keeper {
namespace {

constexpr uint32_t kMagic = 0x50444450;
constexpr uint32_t kVersion = 1;
constexpr int kReadAttemptsMax = 1000;  // a live writer is inside for nanoseconds
constexpr size_t kSequenceOffset = 8;
constexpr size_t kContentBytes = 256;
constexpr size_t kCollectiveBytes = 64;
constexpr size_t kTextBytes = 136;

template <typename Value>
Value Load(const unsigned char* bytes, size_t offset) {
  Value value;
  memcpy(&value, bytes + offset, sizeof value);
  return value;
}

std::string LoadText(const unsigned char* bytes, size_t offset, size_t capacity) {
  const char* text = reinterpret_cast<const char*>(bytes + offset);
  return std::string(text, strnlen(text, capacity));
}

uint32_t Sequence(const unsigned char* bytes) {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(bytes + kSequenceOffset),
                         __ATOMIC_ACQUIRE);
}

}  // namespace

StepPage::StepPage(StepPage&& other) noexcept
    : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, nullptr)) {}

StepPage& StepPage::operator=(StepPage&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

StepPage::~StepPage() {
  if (bytes_ != nullptr) munmap(const_cast<unsigned char*>(bytes_), kStepPageBytes);
}

int StepPage::Create() {
  Fd fd(memfd_create("ddprun-step-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), kStepPageBytes) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno;
  }
  void* bytes = mmap(nullptr, kStepPageBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (bytes == MAP_FAILED) return errno;
  bytes_ = static_cast<const unsigned char*>(bytes);
  fd_ = std::move(fd);
  return 0;
}

std::optional<StepPageContent> StepPage::Read() const {
  if (bytes_ == nullptr || Load<uint32_t>(bytes_, 0) != kMagic ||
      Load<uint32_t>(bytes_, 4) != kVersion) {
    return std::nullopt;
  }
  unsigned char copy[kContentBytes];
  for (int attempt = 0; attempt < kReadAttemptsMax; ++attempt) {
    const uint32_t before = Sequence(bytes_);
    memcpy(copy, bytes_, sizeof copy);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (before % 2 == 0 && Sequence(bytes_) == before) break;
  }
  StepPageContent content;
  content.phase = Load<uint32_t>(copy, 12);
  content.step = Load<uint64_t>(copy, 16);
  content.changed_ns = Load<uint64_t>(copy, 24);
  content.collective_started = Load<uint64_t>(copy, 40);
  content.collective_finished = Load<uint64_t>(copy, 48);
  content.collective = LoadText(copy, 56, kCollectiveBytes);
  content.text = LoadText(copy, 120, kTextBytes);
  return content;
}

}  // namespace ddprun::keeper
