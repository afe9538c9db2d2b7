// Which keys of a train.cfg go together. A key that would be ignored silently is an error, so that
// nobody trains for days with a value that had no effect. Pure.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/config/key_table.h"

namespace ddprun {

// Which keys were given, and where; `from_override` decides between epochs and steps.
struct Given {
  std::string where;  // "train.cfg:12: [train] lr" or "--set train.lr=1"
  bool from_override = false;
};
using GivenKeys = std::map<const KeySpec*, Given>;

// INVALID_ARGUMENT for the first key without a meaning, or without the key that it needs. Where the
// command line chose another model, kind of data, optimizer or schedule than the file, the file's
// keys for its own are passed over: they get their defaults, and are no longer given.
absl::Status CheckCombinations(const std::string& file_name, TrainConfig* config, GivenKeys* keys);

}  // namespace ddprun
