#include "launcher/cli/ckpt_numbers.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ddprun::cli {
namespace {

template <typename T>
T Load(const uint8_t* data, size_t index) {
  T value;
  memcpy(&value, data + index * sizeof(T), sizeof value);
  return value;
}

template <typename T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

double ReadNumber(absl::string_view dtype, const uint8_t* data, size_t index) {
  if (dtype == "F64") return Load<double>(data, index);
  if (dtype == "F32") return Load<float>(data, index);
  if (dtype == "F16") return FromHalf(Load<uint16_t>(data, index));
  return std::bit_cast<float>(uint32_t{Load<uint16_t>(data, index)} << 16);
}

// What is finite, and no more in `to`.
bool Overflows(absl::string_view to, double value, float narrow) {
  if (!std::isfinite(value)) return false;
  if (to == "F64") return false;
  if (!std::isfinite(narrow)) return true;
  if (to == "F16") return (ToHalf(narrow) & 0x7c00) == 0x7c00;
  return to == "BF16" && (ToBfloat16(narrow) & 0x7f80) == 0x7f80;
}

}  // namespace

bool IsFloatDtype(absl::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

uint16_t ToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);  // stays one
  const uint32_t odd = (bits >> 16) & 1;
  return static_cast<uint16_t>((bits + 0x7fff + odd) >> 16);
}

uint16_t ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (std::isnan(value)) return sign | 0x7e00;
  const float size = std::fabs(value);
  constexpr float kInfinityFrom = 65520;  // half-way to what would come after the largest, 65504
  if (size >= kInfinityFrom) return sign | 0x7c00;
  constexpr float kSmallestNormal = 0x1p-14F;
  if (size < kSmallestNormal) {
    // Multiples of 2^-24: the processor rounds the exact product to an integer.
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24F)));
  }
  constexpr uint32_t kDropped = 13;  // bits of the fraction
  const auto magnitude = std::bit_cast<uint32_t>(size) - ((127u - 15u) << 23);
  const uint32_t odd = (magnitude >> kDropped) & 1;
  return static_cast<uint16_t>(sign | ((magnitude + 0xfff + odd) >> kDropped));
}

float FromHalf(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0) {
    const float size = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(size) | sign);
  }
  const uint32_t wide = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

absl::Status ConvertNumbers(absl::string_view from, absl::string_view to, const uint8_t* data,
                            size_t count, std::string* out) {
  for (size_t i = 0; i < count; ++i) {
    const double value = ReadNumber(from, data, i);
    const auto narrow = static_cast<float>(value);
    if (Overflows(to, value, narrow)) {
      return absl::OutOfRangeError(absl::StrCat("element ", i, " is ", value));
    }
    if (to == "F64") {
      Append(value, out);
    } else if (to == "F32") {
      Append(narrow, out);
    } else {
      Append(to == "F16" ? ToHalf(narrow) : ToBfloat16(narrow), out);
    }
  }
  return absl::OkStatus();
}

}  // namespace ddprun::cli
