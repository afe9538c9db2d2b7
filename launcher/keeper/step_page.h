// The step page (proto/worker_protocol.md): 4,096 bytes of shared memory that a worker writes and
// the keeper reads when the worker is gone. One StepPage per worker, used by the keeper's thread
// alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/keeper/fd.h"

namespace ddprun::keeper {

inline constexpr size_t kStepPageBytes = 4096;

struct StepPageContent {
  uint32_t phase = 0;
  uint64_t step = 0;
  uint64_t changed_ns = 0;  // CLOCK_MONOTONIC
  uint64_t collective_started = 0;
  uint64_t collective_finished = 0;
  std::string collective;
  std::string text;
};

class StepPage {
 public:
  StepPage() = default;
  StepPage(StepPage&& other) noexcept;
  StepPage& operator=(StepPage&& other) noexcept;
  StepPage(const StepPage&) = delete;
  StepPage& operator=(const StepPage&) = delete;
  ~StepPage();

  // Makes the memory, sealed so that a worker cannot resize it (a read beyond its end would kill
  // the keeper). 0 or errno.
  int Create();
  int fd() const { return fd_.get(); }
  // After the fork: the mapping stays.
  void CloseFd() { fd_.Reset(); }

  // nullopt: the worker never wrote a page of version 1. If the writer died inside, the values may
  // be of two moments.
  std::optional<StepPageContent> Read() const;

 private:
  Fd fd_;
  const unsigned char* bytes_ = nullptr;
};

}  // namespace ddprun::keeper
