#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "launcher/store/store.h"

namespace ddprun {
namespace {

class MemoryStore final : public Store {
 public:
  absl::StatusOr<StoredValue> Get(const std::string& key) override {
    std::lock_guard lock(mutex_);
    auto found = values_.find(key);
    if (found == values_.end()) return absl::NotFoundError(absl::StrCat("no key ", key));
    return found->second;
  }

  absl::StatusOr<uint64_t> CompareAndSet(const std::string& key, uint64_t expected,
                                         const std::string& value) override {
    std::lock_guard lock(mutex_);
    StoredValue& stored = values_[key];
    if (stored.revision != expected) {
      return absl::AbortedError(
          absl::StrCat("key ", key, " is at revision ", stored.revision, ", not ", expected));
    }
    stored = {value, ++revision_};
    return stored.revision;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, StoredValue> values_;
  uint64_t revision_ = 0;
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore() {
  return std::make_unique<MemoryStore>();
}

}  // namespace ddprun
