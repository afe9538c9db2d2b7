// Floating-point numbers of tensors from one type to another, rounded to nearest, ties to even, as
// PyTorch's Tensor.to does it (a 64-bit number goes through 32 bits to 16). Bytes are little-endian
// and need no alignment. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ddprun::cli {

// F64, F32, F16, BF16: what ConvertNumbers takes and gives.
bool IsFloatDtype(absl::string_view dtype);

uint16_t ToBfloat16(float value);
uint16_t ToHalf(float value);
float FromHalf(uint16_t bits);

// Appends `count` numbers of type `from` at `data` to `*out` as `to`. OUT_OF_RANGE: a finite number
// is too large for `to` (its place and value are named).
absl::Status ConvertNumbers(absl::string_view from, absl::string_view to, const uint8_t* data,
                            size_t count, std::string* out);

}  // namespace ddprun::cli
