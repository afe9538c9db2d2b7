// The vocabulary and the longest sequence of a model of tokens: what [model] vocab_size and
// sequence_length say, else the model's defaults. Data and model both go by them. Pure.
#pragma once

#include <cstdint>

#include "common/config/train_config.h"

namespace ddprun {

struct TokenSizes {
  int64_t vocab_size = 0;
  int64_t sequence_length = 0;
};

// Zeros where neither the configuration nor the model (bert, gpt) has a number.
inline TokenSizes ResolveTokenSizes(const TrainConfig& config) {
  TokenSizes sizes;
  if (config.model_name == "bert") sizes = {.vocab_size = 30522, .sequence_length = 512};
  if (config.model_name == "gpt") sizes = {.vocab_size = 50257, .sequence_length = 1024};
  if (config.model_vocab_size > 0) sizes.vocab_size = config.model_vocab_size;
  if (config.model_sequence_length > 0) sizes.sequence_length = config.model_sequence_length;
  return sizes;
}

}  // namespace ddprun
