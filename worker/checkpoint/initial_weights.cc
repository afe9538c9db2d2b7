#include "worker/checkpoint/initial_weights.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/checkpoint/tensor_format.h"

namespace ddprun {
namespace {

constexpr int64_t kImagenetStemKernel = 7;  // its first convolution's height and width

bool SameBits(const SafetensorsFile& file, const TensorInfo& a, const TensorInfo& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         memcmp(file.Data(a), file.Data(b), a.bytes()) == 0;
}

// A state_dict has a tied parameter under all of its names, and what removes the copies may keep
// any of them: `tensors` then asks for it under the name that is there. The names that are there
// besides go to `passed_over`.
absl::Status ResolveTiedNames(const SafetensorsFile& file, const Model& model,
                              std::vector<NamedTensor>* tensors,
                              std::vector<std::string>* passed_over) {
  for (const TiedName& tied : model.tied_names()) {
    const TensorInfo* other = file.Find(tied.name);
    if (other == nullptr) continue;
    const TensorInfo* first = file.Find(tied.parameter);
    if (first == nullptr) {
      for (NamedTensor& item : *tensors) {
        if (item.name == tied.parameter) item.name = tied.name;
      }
    } else if (SameBits(file, *first, *other)) {
      passed_over->push_back(tied.name);
    } else {
      return absl::FailedPreconditionError(absl::StrCat(
          file.path(), ": tensor \"", tied.name, "\" is not equal to \"", tied.parameter,
          "\", but this model has one parameter for both (tied weights); it cannot begin with "
          "weights of a model that has two. Leave out of the file the one that is not meant"));
    }
  }
  return absl::OkStatus();
}

bool IsOtherFloat(const std::string& dtype) {
  return dtype == "F16" || dtype == "BF16" || dtype == "F64";
}

// The first tensor of another floating-point type than F32, where the file would fit with all of
// them in F32; nullptr where it would not, or fits.
const TensorInfo* OnlyOfAnotherType(const SafetensorsFile& file,
                                    const std::vector<TensorInfo>& wanted, size_t passed_over) {
  const TensorInfo* first = nullptr;
  for (const TensorInfo& want : wanted) {
    const TensorInfo* found = file.Find(want.name);
    if (found == nullptr || found->shape != want.shape || IsOtherFloat(want.dtype)) return nullptr;
    if (found->dtype == want.dtype) continue;
    if (want.dtype != "F32" || !IsOtherFloat(found->dtype)) return nullptr;
    if (first == nullptr) first = found;
  }
  return file.header().tensors.size() == wanted.size() + passed_over ? first : nullptr;
}

std::string StemOf(const SafetensorsFile& file) {
  return std::string(absl::StripSuffix(file.path(), ".safetensors"));
}

absl::Status CheckTypes(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors,
                        size_t passed_over) {
  absl::StatusOr<std::vector<TensorInfo>> wanted = TensorInfos(tensors);
  if (!wanted.ok()) return wanted.status();
  const TensorInfo* other = OnlyOfAnotherType(file, *wanted, passed_over);
  if (other == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      file.path(), ": tensor \"", other->name, "\" is ", other->dtype,
      ", expected F32; convert the file: ddprun ckpt convert ", file.path(), " --dtype fp32 -o ",
      StemOf(file), "-fp32.safetensors, and set weights to what that writes"));
}

// Where the file has a whole model of the same kind, but other sizes: the keys of [model] that
// would fit it; "" where none is known.
std::string FittingKeys(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors) {
  struct Size {
    absl::string_view tensor;
    int64_t dimension;
    absl::string_view key;
  };
  constexpr Size kSizes[] = {
      {"conv1.weight", 2, "stem"},          {"fc.weight", 0, "classes"},
      {"wte.weight", 0, "vocab_size"},      {"wte.weight", 1, "d_model"},
      {"wpe.weight", 0, "sequence_length"}, {"token.weight", 0, "vocab_size"},
      {"token.weight", 1, "d_model"},       {"position.weight", 0, "sequence_length"}};
  std::vector<std::string> keys;
  bool head = false;
  for (const Size& size : kSizes) {
    const TensorInfo* found = file.Find(size.tensor);
    const auto ours = std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& item) {
      return item.name == size.tensor;
    });
    if (found == nullptr || ours == tensors.end() ||
        static_cast<int64_t>(found->shape.size()) != ours->tensor.dim() ||
        size.dimension >= ours->tensor.dim()) {
      continue;
    }
    const int64_t theirs = found->shape[static_cast<size_t>(size.dimension)];
    if (theirs == ours->tensor.size(size.dimension)) continue;
    if (size.key == "stem") {
      keys.push_back(theirs == kImagenetStemKernel ? "stem = \"imagenet\"" : "stem = \"cifar\"");
    } else {
      keys.push_back(absl::StrCat(size.key, " = ", theirs));
      head = head || size.key == "classes";
    }
  }
  if (keys.empty()) return "";
  return absl::StrCat("; [model] ", absl::StrJoin(keys, ", "), " would fit it",
                      head ? ", or weights_except = \"fc.\" begins with a new last layer" : "");
}

// Names of a state_dict that was taken of what wraps the model, as DDP does ("module.").
absl::Status CheckPrefix(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors) {
  if (tensors.empty() || file.Find(tensors[0].name) != nullptr) return absl::OkStatus();
  for (const TensorInfo& tensor : file.header().tensors) {
    const absl::string_view name = tensor.name;
    if (!absl::EndsWith(name, absl::StrCat(".", tensors[0].name))) continue;
    const std::string prefix(name.substr(0, name.size() - tensors[0].name.size()));
    const bool all = std::all_of(tensors.begin(), tensors.end(), [&](const NamedTensor& item) {
      return file.Find(prefix + item.name) != nullptr;
    });
    if (!all) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        file.path(), ": all names begin with \"", prefix,
        "\"; take that away: ddprun ckpt convert ", file.path(), " --prefix-strip ", prefix, " -o ",
        StemOf(file), "-plain.safetensors, and set weights to what that writes"));
  }
  return absl::OkStatus();
}

bool BeginsWithAny(absl::string_view name, const std::vector<std::string>& texts) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return absl::StartsWith(name, text); });
}

// What the file must have: all parameters and buffers of the model, without those of `except`.
absl::StatusOr<std::vector<NamedTensor>> WantedTensors(const SafetensorsFile& file,
                                                       const Model& model,
                                                       const std::vector<std::string>& except) {
  std::vector<NamedTensor> all = model.Parameters();
  for (const NamedTensor& buffer : model.Buffers()) {
    const bool optional = absl::EndsWith(buffer.name, "num_batches_tracked");
    if (!optional || file.Find(buffer.name) != nullptr) all.push_back(buffer);
  }
  for (const std::string& text : except) {
    const bool used = std::any_of(all.begin(), all.end(), [&](const NamedTensor& item) {
      return absl::StartsWith(item.name, text);
    });
    if (used) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("[model] weights_except: no weight of this model has a name that begins with ",
                     "\"", text, "\"; the last one is \"", model.Parameters().back().name, "\""));
  }
  std::erase_if(all, [&](const NamedTensor& item) { return BeginsWithAny(item.name, except); });
  return all;
}

}  // namespace

absl::Status LoadInitialWeights(const std::string& path, const std::string& except,
                                const Model& model) {
  if (absl::EndsWith(path, ".json")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[model] weights: ", path, ": is an index of several files; make one of them: ",
        "ddprun ckpt convert ", path, " -o weights.safetensors"));
  }
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[model] weights: ", std::string(file.status().message())));
  }
  std::vector<std::string> fresh = absl::StrSplit(except, ',', absl::SkipWhitespace());
  for (std::string& text : fresh) absl::StripAsciiWhitespace(&text);
  absl::StatusOr<std::vector<NamedTensor>> tensors = WantedTensors(*file, model, fresh);
  if (!tensors.ok()) return tensors.status();
  std::vector<std::string> passed_over;
  for (const TensorInfo& tensor : file->header().tensors) {
    if (BeginsWithAny(tensor.name, fresh)) passed_over.push_back(tensor.name);
  }
  absl::Status status = ResolveTiedNames(*file, model, &*tensors, &passed_over);
  if (status.ok()) status = CheckTypes(*file, *tensors, passed_over.size());
  if (status.ok()) status = CheckPrefix(*file, *tensors);
  if (status.ok()) {
    status = LoadTensors(*file, *tensors, passed_over, "another model, or of other sizes");
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("[model] weights: ", std::string(status.message()),
                                                 FittingKeys(*file, *tensors)));
}

}  // namespace ddprun
