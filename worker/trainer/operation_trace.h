// Watches LibTorch's operations of this thread while it lives: which was the first whose output was
// not finite although its inputs were. For finding causes only; each operation is waited for and
// looked at. One at a time.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/model/model.h"

namespace ddprun {

class OperationTrace {
 public:
  // `parameters` give operations their names: "conv2d with layer1.0.conv1.weight".
  explicit OperationTrace(const std::vector<NamedTensor>& parameters);
  ~OperationTrace();
  OperationTrace(const OperationTrace&) = delete;
  OperationTrace& operator=(const OperationTrace&) = delete;

  // "" when there was none. NaN and +inf come before −inf, which masks hold on purpose.
  std::string FirstNonFinite() const;

  struct Record;  // what the callbacks fill

 private:
  std::unique_ptr<Record> record_;
  at::CallbackHandle handle_;
};

}  // namespace ddprun
