#include "worker/trainer/reducer_tensors.h"

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

// Tensors travel in parts of about this size; a larger one is a part of its own.
constexpr int64_t kPartBytes = int64_t{25} << 20;

// Any tensor as a row of bytes (a copy unless it is contiguous).
torch::Tensor AsBytes(const torch::Tensor& tensor) {
  return tensor.detach().contiguous().reshape({-1}).view(torch::kUInt8);
}

absl::Status BroadcastPart(const NamedTensors& part, Communicator& communicator) {
  std::vector<torch::Tensor> rows;
  for (const auto& [name, tensor] : part) rows.push_back(AsBytes(tensor));
  torch::Tensor packed = torch::cat(rows);
  const auto bytes = static_cast<size_t>(packed.numel());
  WorkPtr work = communicator.Broadcast(packed.data_ptr(), bytes, DataType::kUInt8, 0);
  absl::Status status = work->WaitHost();
  if (!status.ok()) return status;
  if (communicator.rank() == 0) return status;
  int64_t offset = 0;
  for (const auto& [name, tensor] : part) {
    const int64_t size = tensor.numel() * tensor.element_size();
    // The slice may begin at any byte; a copy is aligned for the type.
    torch::Tensor bytes_of = packed.narrow(0, offset, size).clone();
    tensor.detach().copy_(bytes_of.view(tensor.scalar_type()).reshape(tensor.sizes()));
    offset += size;
  }
  return status;
}

}  // namespace

std::string ScalarTypeName(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return "float32";
    case torch::kFloat64:
      return "float64";
    case torch::kFloat16:
      return "float16";
    case torch::kBFloat16:
      return "bfloat16";
    case torch::kInt32:
      return "int32";
    case torch::kInt64:
      return "int64";
    case torch::kUInt8:
      return "uint8";
    default:
      return c10::toString(type);
  }
}

absl::StatusOr<DataType> CommunicatorType(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return DataType::kFloat32;
    case torch::kFloat64:
      return DataType::kFloat64;
    case torch::kFloat16:
      return DataType::kFloat16;
    case torch::kBFloat16:
      return DataType::kBFloat16;
    case torch::kInt32:
      return DataType::kInt32;
    case torch::kInt64:
      return DataType::kInt64;
    case torch::kUInt8:
      return DataType::kUInt8;
    default:
      return absl::UnimplementedError(
          absl::StrCat("tensors of type ", ScalarTypeName(type), " cannot be reduced"));
  }
}

std::vector<TensorDescription> DescribeTensors(const NamedTensors& parameters,
                                               const NamedTensors& buffers) {
  std::vector<TensorDescription> result;
  for (const auto* list : {&parameters, &buffers}) {
    for (const auto& [name, tensor] : *list) {
      result.push_back(
          {name, ScalarTypeName(tensor.scalar_type()), tensor.sizes().vec(), list == &buffers});
    }
  }
  return result;
}

absl::Status BroadcastTensors(const NamedTensors& tensors, Communicator* communicator) {
  if (communicator == nullptr || communicator->size() == 1) return absl::OkStatus();
  const torch::NoGradGuard no_grad;
  NamedTensors part;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].second.numel() > 0) part.push_back(tensors[i]);
    bytes += tensors[i].second.numel() * tensors[i].second.element_size();
    if (part.empty() || (bytes < kPartBytes && i + 1 < tensors.size())) continue;
    absl::Status status = BroadcastPart(part, *communicator);
    if (!status.ok()) return status;
    part.clear();
    bytes = 0;
  }
  return absl::OkStatus();
}

absl::Status BroadcastParametersAndBuffers(const NamedTensors& parameters,
                                           const NamedTensors& buffers,
                                           Communicator* communicator) {
  NamedTensors all = parameters;
  all.insert(all.end(), buffers.begin(), buffers.end());
  return BroadcastTensors(all, communicator);
}

}  // namespace ddprun
