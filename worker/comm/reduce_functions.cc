#include "worker/comm/reduce_functions.h"

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "gloo/types.h"

namespace ddprun {
namespace {

// How each stored type is computed with.
template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};

struct Half {
  using Stored = gloo::float16;
  using Computed = float;
  static float Load(gloo::float16 value) { return gloo::cpu_half2float(value); }
  static gloo::float16 Store(float value) { return gloo::cpu_float2half_rn(value); }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Computed = float;
  static float Load(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }
  static uint16_t Store(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return 0x7fc0;  // NaN: rounding could make it infinite
    return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
};

struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

template <bool kWantSmaller>
struct Extreme {
  template <typename T>
  static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (b != b) return b;
    }
    const bool keep = kWantSmaller ? a < b : a > b;
    return keep || a != a ? a : b;
  }
};

// In place, the two ranges are known to be apart, which lets the compiler use vector instructions.
template <typename Type, typename Op>
void ReduceInPlace(typename Type::Stored* __restrict out,
                   const typename Type::Stored* __restrict other, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = Type::Store(Op::Apply(Type::Load(out[i]), Type::Load(other[i])));
  }
}

template <typename Type, typename Op>
void Reduce(void* out, const void* a, const void* b, size_t count) {
  using Stored = typename Type::Stored;
  auto* result = static_cast<Stored*>(out);
  const auto* left = static_cast<const Stored*>(a);
  const auto* right = static_cast<const Stored*>(b);
  if (out == a) return ReduceInPlace<Type, Op>(result, right, count);
  for (size_t i = 0; i < count; ++i) {
    result[i] = Type::Store(Op::Apply(Type::Load(left[i]), Type::Load(right[i])));
  }
}

template <typename Type>
ReduceFunction Find(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return &Reduce<Type, Sum>;
    case ReduceOp::kMin:
      return &Reduce<Type, Extreme<true>>;
    case ReduceOp::kMax:
      return &Reduce<Type, Extreme<false>>;
  }
  std::abort();
}

template <typename Type>
void Divide(void* data, size_t count, int divisor) {
  using Computed = typename Type::Computed;
  auto* values = static_cast<typename Type::Stored*>(data);
  const auto by = static_cast<Computed>(divisor);
  for (size_t i = 0; i < count; ++i) {
    values[i] = Type::Store(static_cast<Computed>(Type::Load(values[i]) / by));
  }
}

// uint8_t cannot hold a divisor of 256 or more; the quotient is 0 then.
void DivideBytes(void* data, size_t count, int divisor) {
  auto* values = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<uint8_t>(values[i] / divisor);
}

}  // namespace

ReduceFunction FindReduceFunction(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat32:
      return Find<Plain<float>>(op);
    case DataType::kFloat64:
      return Find<Plain<double>>(op);
    case DataType::kFloat16:
      return Find<Half>(op);
    case DataType::kBFloat16:
      return Find<BFloat16>(op);
    case DataType::kInt32:
      return Find<Plain<int32_t>>(op);
    case DataType::kInt64:
      return Find<Plain<int64_t>>(op);
    case DataType::kUInt8:
      return Find<Plain<uint8_t>>(op);
  }
  std::abort();
}

void DivideBy(void* data, size_t count, DataType type, int divisor) {
  switch (type) {
    case DataType::kFloat32:
      return Divide<Plain<float>>(data, count, divisor);
    case DataType::kFloat64:
      return Divide<Plain<double>>(data, count, divisor);
    case DataType::kFloat16:
      return Divide<Half>(data, count, divisor);
    case DataType::kBFloat16:
      return Divide<BFloat16>(data, count, divisor);
    case DataType::kInt32:
      return Divide<Plain<int32_t>>(data, count, divisor);
    case DataType::kInt64:
      return Divide<Plain<int64_t>>(data, count, divisor);
    case DataType::kUInt8:
      return DivideBytes(data, count, divisor);
  }
}

}  // namespace ddprun
