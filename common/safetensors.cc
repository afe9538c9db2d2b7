#include "common/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr std::pair<absl::string_view, int> kDtypes[] = {
    {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
    {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
    {"C64", 64},    {"F64", 64},        {"I64", 64},        {"U64", 64},    {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}};

constexpr size_t kLengthBytes = 8;
constexpr size_t kDataAlignment = 8;
// {"name": {"shape": [n]}} is as deep as a header goes.
constexpr int kJsonDepthMax = 4;

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("not a valid safetensors file: ", what));
}

// A zip archive; before PyTorch 1.6, pickles of protocol 2.
bool IsOfTorchSave(absl::string_view begin) {
  return absl::StartsWith(begin, "PK\x03\x04") || absl::StartsWith(begin, "\x80\x02");
}

// Bytes of a tensor; overflow and broken bytes are errors.
absl::StatusOr<uint64_t> TensorBytes(const TensorInfo& tensor) {
  const int bits = DtypeBits(tensor.dtype);
  if (bits == 0) {
    return Bad(
        absl::StrCat("tensor \"", tensor.name, "\" has the unknown dtype \"", tensor.dtype, "\""));
  }
  uint64_t total = static_cast<uint64_t>(bits);
  for (int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(total, static_cast<uint64_t>(extent), &total)) {
      return Bad(
          absl::StrCat("the shape of tensor \"", tensor.name, "\" is negative or overflows"));
    }
  }
  if (total % 8 != 0) {
    return Bad(absl::StrCat("tensor \"", tensor.name, "\" does not fill whole bytes"));
  }
  return total / 8;
}

// JSON as nlohmann reads it, but with duplicate keys and deep nesting refused.
absl::StatusOr<Json> ParseStrictJson(absl::string_view text) {
  std::vector<std::set<std::string>> keys(1);
  std::string duplicate;
  bool too_deep = false;
  const Json::parser_callback_t callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kJsonDepthMax) too_deep = true;
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second)
          duplicate = parsed.get<std::string>();
        break;
      case Json::parse_event_t::array_start:
      case Json::parse_event_t::array_end:
      case Json::parse_event_t::value:
        break;
    }
    return !too_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (too_deep) return Bad("its JSON header is nested too deeply");
  if (json.is_discarded()) return Bad("its header is not JSON");
  if (!duplicate.empty())
    return Bad(absl::StrCat("the name \"", duplicate, "\" stands twice in its header"));
  if (!json.is_object()) return Bad("its header is not a JSON object");
  return json;
}

absl::Status ParseMetadata(const Json& json, std::map<std::string, std::string>* metadata) {
  if (!json.is_object()) return Bad("__metadata__ is not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return Bad(absl::StrCat("__metadata__ \"", key, "\" is not a string"));
    (*metadata)[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

bool IsExtent(const Json& json) {
  return json.is_number_unsigned() &&
         json.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

absl::StatusOr<TensorInfo> ParseTensor(const std::string& name, const Json& json) {
  const auto bad = [&](const char* what) {
    return Bad(absl::StrCat("tensor \"", name, "\": ", what));
  };
  if (!json.is_object() || json.size() != 3) return bad("expected dtype, shape and data_offsets");
  const auto dtype = json.find("dtype");
  const auto shape = json.find("shape");
  const auto offsets = json.find("data_offsets");
  if (dtype == json.end() || !dtype->is_string()) return bad("dtype is missing or not a string");
  if (shape == json.end() || !shape->is_array()) return bad("shape is missing or not an array");
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2 ||
      !IsExtent((*offsets)[0]) || !IsExtent((*offsets)[1])) {
    return bad("data_offsets is missing or not a pair of unsigned integers");
  }
  if (shape->size() > kSafetensorsRankMax) return bad("has too many dimensions");
  TensorInfo tensor{name,
                    dtype->get<std::string>(),
                    {},
                    (*offsets)[0].get<uint64_t>(),
                    (*offsets)[1].get<uint64_t>()};
  for (const Json& extent : *shape) {
    if (!IsExtent(extent)) return bad("shape holds something that is not an unsigned integer");
    tensor.shape.push_back(extent.get<int64_t>());
  }
  absl::StatusOr<uint64_t> bytes = TensorBytes(tensor);
  if (!bytes.ok()) return bytes.status();
  if (tensor.end < tensor.begin || tensor.bytes() != *bytes) {
    return bad("data_offsets do not agree with dtype and shape");
  }
  return tensor;
}

// The data section is exactly the tensors, one after the other.
absl::Status CheckLayout(std::vector<TensorInfo>* tensors, uint64_t data_bytes) {
  std::sort(tensors->begin(), tensors->end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t position = 0;
  for (const TensorInfo& tensor : *tensors) {
    if (tensor.begin != position) {
      return Bad(absl::StrCat("tensor \"", tensor.name, "\" begins at ", tensor.begin,
                              ", expected ", position,
                              tensor.begin > position ? " (a hole)" : " (an overlap)"));
    }
    position = tensor.end;
  }
  if (position != data_bytes) {
    return Bad(absl::StrCat("its tensors take ", position, " bytes, but ", data_bytes,
                            " follow the header; the file is truncated or has bytes appended"));
  }
  return absl::OkStatus();
}

}  // namespace

int DtypeBits(absl::string_view dtype) {
  for (const auto& [name, bits] : kDtypes) {
    if (name == dtype) return bits;
  }
  return 0;
}

absl::StatusOr<std::string> BuildSafetensorsHeader(
    std::vector<TensorInfo>* tensors, const std::map<std::string, std::string>& metadata) {
  std::sort(tensors->begin(), tensors->end(), [](const TensorInfo& a, const TensorInfo& b) {
    const int bits_a = DtypeBits(a.dtype);
    const int bits_b = DtypeBits(b.dtype);
    return std::tie(bits_b, a.name) < std::tie(bits_a, b.name);
  });
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  uint64_t position = 0;
  for (TensorInfo& tensor : *tensors) {
    absl::StatusOr<uint64_t> bytes = TensorBytes(tensor);
    if (!bytes.ok()) return bytes.status();
    if (tensor.name == "__metadata__" || root.contains(tensor.name)) {
      return Bad(absl::StrCat("the name \"", tensor.name, "\" cannot be used, or is used twice"));
    }
    tensor.begin = position;
    tensor.end = position += *bytes;
    root[tensor.name] = {{"dtype", tensor.dtype},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.begin, tensor.end}}};
  }
  // Names that are not UTF-8 would throw; they are replaced, and then differ from what was asked.
  std::string text = root.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((kDataAlignment - text.size() % kDataAlignment) % kDataAlignment, ' ');
  if (text.size() > kSafetensorsHeaderBytesMax) return Bad("its header would be too large");
  std::string header(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) header[i] = static_cast<char>(text.size() >> (8 * i));
  return header + text;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view prefix,
                                                         uint64_t file_bytes) {
  if (file_bytes < kLengthBytes || prefix.size() < kLengthBytes) return Bad("shorter than 8 bytes");
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<uint8_t>(prefix[i])} << (8 * i);
  }
  if (length > kSafetensorsHeaderBytesMax) {
    if (IsOfTorchSave(prefix)) {
      return Bad(
          "torch.save has written it. In Python, with its path as F: from safetensors.torch import "
          "save_file; save_file(torch.load(F, weights_only=True), F + \".safetensors\")");
    }
    return Bad(absl::StrCat("its header would be ", length, " bytes, more than ",
                            kSafetensorsHeaderBytesMax));
  }
  if (length > file_bytes - kLengthBytes || length > prefix.size() - kLengthBytes) {
    return Bad("truncated within its header");
  }
  const absl::string_view text = prefix.substr(kLengthBytes, length);
  if (text.empty() || text[0] != '{') return Bad("its header does not begin with {");
  absl::StatusOr<Json> json = ParseStrictJson(text);
  if (!json.ok()) return json.status();
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  for (const auto& [name, value] : json->items()) {
    if (name == "__metadata__") {
      if (absl::Status status = ParseMetadata(value, &header.metadata); !status.ok()) return status;
      continue;
    }
    absl::StatusOr<TensorInfo> tensor = ParseTensor(name, value);
    if (!tensor.ok()) return tensor.status();
    header.tensors.push_back(*std::move(tensor));
  }
  if (absl::Status status = CheckLayout(&header.tensors, file_bytes - header.data_begin);
      !status.ok()) {
    return status;
  }
  return header;
}

}  // namespace ddprun
