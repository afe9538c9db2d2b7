#include "worker/checkpoint/tensor_format.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/weights_digest.h"

namespace ddprun {
namespace {

// Names in a message; a model of another kind differs in hundreds.
constexpr size_t kDifferencesNamedMax = 10;

std::string Described(const TensorInfo& tensor) {
  return absl::StrCat(tensor.dtype, " [", absl::StrJoin(tensor.shape, ", "), "]");
}

// Every tensor that the file lacks, has otherwise, or has too many; one sentence each.
std::vector<std::string> Differences(const SafetensorsFile& file,
                                     const std::vector<TensorInfo>& wanted,
                                     const std::vector<std::string>& passed_over) {
  std::vector<std::string> all;
  std::set<std::string> names(passed_over.begin(), passed_over.end());
  for (const TensorInfo& want : wanted) {
    names.insert(want.name);
    const TensorInfo* found = file.Find(want.name);
    if (found == nullptr) {
      all.push_back(absl::StrCat("holds no tensor \"", want.name, "\""));
    } else if (found->dtype != want.dtype || found->shape != want.shape) {
      all.push_back(absl::StrCat("tensor \"", want.name, "\" is ", Described(*found), ", expected ",
                                 Described(want)));
    }
  }
  for (const TensorInfo& tensor : file.header().tensors) {
    if (names.contains(tensor.name)) continue;
    all.push_back(absl::StrCat("holds the unexpected tensor \"", tensor.name, "\""));
  }
  return all;
}

}  // namespace

absl::StatusOr<std::string> SafetensorsDtype(at::ScalarType type) {
  // Not a full switch: LibTorch has dozens of types that the format does not know.
  if (type == at::kFloat) return "F32";
  if (type == at::kDouble) return "F64";
  if (type == at::kHalf) return "F16";
  if (type == at::kBFloat16) return "BF16";
  if (type == at::kLong) return "I64";
  if (type == at::kInt) return "I32";
  if (type == at::kShort) return "I16";
  if (type == at::kChar) return "I8";
  if (type == at::kByte) return "U8";
  if (type == at::kBool) return "BOOL";
  return absl::InvalidArgumentError(
      absl::StrCat("tensors of type ", at::toString(type), " cannot be saved"));
}

absl::StatusOr<std::vector<TensorInfo>> TensorInfos(const std::vector<NamedTensor>& tensors) {
  std::vector<TensorInfo> all;
  for (const NamedTensor& item : tensors) {
    absl::StatusOr<std::string> dtype = SafetensorsDtype(item.tensor.scalar_type());
    if (!dtype.ok()) return dtype.status();
    all.push_back({item.name, *std::move(dtype), item.tensor.sizes().vec()});
  }
  return all;
}

absl::Status LoadTensors(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors,
                         const std::vector<std::string>& passed_over, const std::string& mismatch) {
  const at::NoGradGuard no_grad;
  absl::StatusOr<std::vector<TensorInfo>> wanted = TensorInfos(tensors);
  if (!wanted.ok()) return wanted.status();
  std::vector<std::string> differences = Differences(file, *wanted, passed_over);
  if (!differences.empty()) {
    const size_t more = differences.size() - std::min(differences.size(), kDifferencesNamedMax);
    if (more > 0) {
      differences.resize(kDifferencesNamedMax);
      differences.push_back(absl::StrCat("and ", more, " more differences"));
    }
    return absl::FailedPreconditionError(
        absl::StrCat(file.path(), ": ", absl::StrJoin(differences, "; "), ": it is of ", mismatch));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& found = *file.Find(tensors[i].name);
    if (found.bytes() == 0) continue;
    // The data may be unaligned for its type in a foreign file, so it goes through bytes.
    at::Tensor host = at::empty(found.shape, at::TensorOptions(tensors[i].tensor.scalar_type()));
    memcpy(host.data_ptr(), file.Data(found), found.bytes());
    at::Tensor target = tensors[i].tensor;
    target.copy_(host);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TensorsDigest(std::vector<NamedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  WeightsDigest digest;
  for (const NamedTensor& item : tensors) {
    absl::StatusOr<std::string> dtype = SafetensorsDtype(item.tensor.scalar_type());
    if (!dtype.ok()) return dtype.status();
    const at::Tensor host = item.tensor.detach().to(at::kCPU).contiguous();
    digest.Add(item.name, *dtype, item.tensor.sizes().vec(), host.data_ptr(), host.nbytes());
  }
  return digest.Finish();
}

}  // namespace ddprun
