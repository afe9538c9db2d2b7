// Store: where a coordinator keeps what must not be decided twice.
//
// Compare-and-set on revisions: a write names the revision that it replaces, so that an older
// coordinator cannot overwrite a newer one. In memory for a run in the foreground, whose run folder
// is its durable trace; other backends implement the same interface. Threads: every method may be
// called from any thread. Errors: ABORTED when the revision does not match, NOT_FOUND.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun {

struct StoredValue {
  std::string value;
  uint64_t revision = 0;
};

class Store {
 public:
  virtual ~Store() = default;
  virtual absl::StatusOr<StoredValue> Get(const std::string& key) = 0;
  // Writes when the key's revision is `expected` (0: the key must not exist). Returns the new
  // revision.
  virtual absl::StatusOr<uint64_t> CompareAndSet(const std::string& key, uint64_t expected,
                                                 const std::string& value) = 0;
};

std::unique_ptr<Store> MakeMemoryStore();

}  // namespace ddprun
