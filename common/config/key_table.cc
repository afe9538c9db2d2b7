#include "common/config/key_table.h"

#include "common/config/key_rows.h"

namespace ddprun {
namespace {

std::vector<KeySpec> BuildTable() {
  std::vector<KeySpec> keys;
  for (const auto& part : {ModelKeys(), DataKeys(), SampleKeys(), TrainKeys(), PrecisionKeys(),
                           ParallelKeys(), PerformanceKeys(), CheckpointKeys()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  return keys;
}

}  // namespace

const std::vector<KeySpec>& TrainConfigKeys() {
  static const auto& keys = *new std::vector<KeySpec>(BuildTable());
  return keys;
}

const KeySpec* FindKey(absl::string_view section, absl::string_view name) {
  for (const KeySpec& key : TrainConfigKeys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

bool IsSection(absl::string_view section) {
  for (const KeySpec& key : TrainConfigKeys()) {
    if (key.section == section) return true;
  }
  return false;
}

}  // namespace ddprun
