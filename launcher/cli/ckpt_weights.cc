#include "launcher/cli/ckpt_weights.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/weights_digest.h"

namespace ddprun::cli {
namespace {

constexpr char kGlobalShape[] = ".global_shape";
constexpr char kOffset[] = ".offset";

absl::Status BadFile(const SafetensorsFile& file, const std::string& what) {
  return absl::DataLossError(absl::StrCat(file.path(), ": ", what));
}

uint64_t Product(const std::vector<int64_t>& shape) {
  uint64_t product = 1;
  for (int64_t extent : shape) product *= static_cast<uint64_t>(extent);
  return product;
}

// A list of the file's metadata, "4,8"; `*list` stays as it is where there is none.
bool ReadList(const SafetensorsFile& file, const std::string& key, std::vector<int64_t>* list) {
  const auto found = file.header().metadata.find(key);
  if (found == file.header().metadata.end()) return true;
  list->clear();
  for (absl::string_view part : absl::StrSplit(found->second, ',', absl::SkipEmpty())) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(part, &value) || value < 0) return false;
    list->push_back(value);
  }
  return true;
}

bool Overlap(const WeightPart& a, const WeightPart& b) {
  for (size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] + a.tensor->shape[d] <= b.offset[d] ||
        b.offset[d] + b.tensor->shape[d] <= a.offset[d]) {
      return false;
    }
  }
  return true;
}

// The part of the tensor that this file holds lies inside the whole.
bool IsInside(const WeightPart& part, const std::vector<int64_t>& whole) {
  if (part.offset.size() != whole.size() || part.tensor->shape.size() != whole.size()) return false;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (part.offset[d] > whole[d] || part.tensor->shape[d] > whole[d] - part.offset[d])
      return false;
  }
  return true;
}

absl::Status CheckCovered(const std::string& name, const Weight& weight) {
  uint64_t elements = 0;
  for (size_t i = 0; i < weight.parts.size(); ++i) {
    const uint64_t own = Product(weight.parts[i].tensor->shape);
    elements += own;
    for (size_t j = 0; own > 0 && j < i; ++j) {
      if (Product(weight.parts[j].tensor->shape) > 0 && Overlap(weight.parts[i], weight.parts[j])) {
        return BadFile(*weight.parts[i].file,
                       absl::StrCat("holds elements of \"", name, "\" that ",
                                    weight.parts[j].file->path(), " holds as well"));
      }
    }
  }
  if (elements == weight.elements()) return absl::OkStatus();
  return BadFile(*weight.parts[0].file,
                 absl::StrCat("of tensor \"", name, "\" only ", elements, " of ", weight.elements(),
                              " elements are there; is one of the files missing?"));
}

// Copies a part to its place in the whole, one run of its last dimension at a time.
void CopyPart(const WeightPart& part, const std::vector<int64_t>& whole, size_t element_bytes,
              char* target) {
  const std::vector<int64_t>& extent = part.tensor->shape;
  const uint8_t* source = part.file->Data(*part.tensor);
  if (part.tensor->bytes() == 0) return;
  const size_t rank = extent.size();
  std::vector<int64_t> place(rank, 0);
  const size_t run = (rank == 0 ? 1 : static_cast<size_t>(extent[rank - 1])) * element_bytes;
  for (uint64_t runs = part.tensor->bytes() / run; runs > 0; --runs) {
    uint64_t index = 0;
    for (size_t d = 0; d < rank; ++d) {
      index = index * static_cast<uint64_t>(whole[d]) +
              static_cast<uint64_t>(part.offset[d] + place[d]);
    }
    memcpy(target + index * element_bytes, source, run);
    source += run;
    for (size_t d = rank - 1; d-- > 0;) {
      if (++place[d] < extent[d]) break;
      place[d] = 0;
    }
  }
}

}  // namespace

uint64_t Weight::elements() const {
  return Product(shape);
}

uint64_t Weight::bytes() const {
  return elements() * static_cast<uint64_t>(DtypeBits(dtype)) / 8;
}

std::string_view Weight::Data(std::string* buffer) const {
  if (parts.size() == 1) {
    return {reinterpret_cast<const char*>(parts[0].file->Data(*parts[0].tensor)), bytes()};
  }
  buffer->resize(bytes());
  for (const WeightPart& part : parts) {
    CopyPart(part, shape, static_cast<size_t>(DtypeBits(dtype)) / 8, buffer->data());
  }
  return *buffer;
}

absl::Status Weights::AddFile(const SafetensorsFile& file) {
  for (const TensorInfo& tensor : file.header().tensors) {
    WeightPart part{&file, &tensor, std::vector<int64_t>(tensor.shape.size(), 0)};
    std::vector<int64_t> whole = tensor.shape;
    if (!ReadList(file, tensor.name + kOffset, &part.offset) ||
        !ReadList(file, tensor.name + kGlobalShape, &whole) || !IsInside(part, whole)) {
      return BadFile(file, absl::StrCat("what it says of the place of \"", tensor.name,
                                        "\" in the whole tensor makes no sense"));
    }
    const auto [place, is_new] = tensors_.try_emplace(tensor.name);
    Weight& weight = place->second;
    if (is_new) {
      weight.dtype = tensor.dtype;
      weight.shape = whole;
    } else if (weight.dtype != tensor.dtype || weight.shape != whole) {
      return BadFile(file,
                     absl::StrCat("\"", tensor.name, "\" is ", tensor.dtype, " ", ShapeText(whole),
                                  " here, and ", weight.dtype, " ", ShapeText(weight.shape), " in ",
                                  weight.parts[0].file->path()));
    }
    if (part.tensor->shape != whole && DtypeBits(tensor.dtype) % 8 != 0) {
      return BadFile(file, absl::StrCat("\"", tensor.name, "\" is of type ", tensor.dtype,
                                        ", which cannot be put together from parts"));
    }
    weight.parts.push_back(std::move(part));
  }
  for (const auto& [key, value] : file.header().metadata) {
    if (absl::EndsWith(key, kGlobalShape) || absl::EndsWith(key, kOffset)) continue;
    metadata_.try_emplace(key, value);
  }
  return absl::OkStatus();
}

absl::StatusOr<Weights> Weights::Open(const std::vector<std::string>& paths) {
  Weights weights;
  for (const std::string& path : paths) {
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    if (!file.ok()) return absl::DataLossError(file.status().message());
    weights.files_.push_back(std::make_unique<SafetensorsFile>(*std::move(file)));
    if (absl::Status status = weights.AddFile(*weights.files_.back()); !status.ok()) return status;
  }
  for (const auto& [name, weight] : weights.tensors_) {
    if (absl::Status status = CheckCovered(name, weight); !status.ok()) return status;
  }
  return weights;
}

std::string Weights::Digest() const {
  WeightsDigest digest;
  std::string buffer;
  for (const auto& [name, weight] : tensors_) {
    const std::string_view data = weight.Data(&buffer);
    digest.Add(name, weight.dtype, weight.shape, data.data(), data.size());
  }
  return digest.Finish();
}

absl::Status Weights::Overlay(Weights other) {
  for (auto& [name, weight] : other.tensors_) {
    const auto own = tensors_.find(name);
    if (own == tensors_.end() || own->second.shape != weight.shape) {
      return BadFile(*weight.parts[0].file,
                     absl::StrCat("holds \"", name, "\" ", ShapeText(weight.shape),
                                  ", which the model has not"));
    }
    own->second = std::move(weight);
  }
  for (auto& file : other.files_) files_.push_back(std::move(file));
  return absl::OkStatus();
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace ddprun::cli
