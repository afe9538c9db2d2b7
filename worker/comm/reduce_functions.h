// Element-wise reductions on host memory, for every DataType.
//
// Pure functions, any thread. 16-bit floats are computed in float and rounded to nearest even after
// each operation. MIN and MAX let a NaN win, whichever side it comes from, so that it is never
// lost.
#pragma once

#include <cstddef>

#include "worker/comm/communicator.h"

namespace ddprun {

// out[i] = a[i] op b[i] for i in 0 … count−1. `out` may be `a` or `b` itself, but not overlap them
// otherwise.
using ReduceFunction = void (*)(void* out, const void* a, const void* b, size_t count);

// kAvg gives the sum; DivideBy then makes it the mean.
ReduceFunction FindReduceFunction(DataType type, ReduceOp op);

// data[i] /= divisor. Integers are divided towards zero.
void DivideBy(void* data, size_t count, DataType type, int divisor);

}  // namespace ddprun
