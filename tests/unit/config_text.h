// A configuration that is right, for tests that make it wrong.
#pragma once

#include <string>
#include <vector>

#include "common/config/train_config.h"

namespace ddprun {

inline constexpr char kGood[] = R"([model]
name = "simple_cnn"
[data]
kind = "idx"
dir = "/data"
[train]
epochs = 2
)";

// "no error", or the message.
inline std::string ErrorOf(const std::string& text,
                           const std::vector<std::string>& overrides = {}) {
  const auto config = ParseTrainConfig(text, "train.cfg", overrides);
  return config.ok() ? "no error" : std::string(config.status().message());
}

}  // namespace ddprun
