// The bucket layout as JSON:
//   {"version":1,"control":{"bucket":1,"offset":250},
//    "buckets":[{"dtype":"float32","numel":…,"entries":[{"name":"fc.bias","offset":0,"numel":10},
//    …]}, …]}
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/parallel/bucket_layout.h"

namespace ddprun {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 1;

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the bucket layout of the checkpoint does not fit this model: ", what));
}

absl::StatusOr<Bucket> ReadBucket(const Json& json, const std::map<std::string, int>& index_of) {
  Bucket bucket;
  bucket.dtype = json.at("dtype").get<std::string>();
  bucket.numel = json.at("numel").get<int64_t>();
  for (const Json& item : json.at("entries")) {
    const auto name = item.at("name").get<std::string>();
    const auto found = index_of.find(name);
    if (found == index_of.end()) return Bad("the model has no parameter '" + name + "'");
    bucket.entries.push_back(
        {found->second, item.at("offset").get<int64_t>(), item.at("numel").get<int64_t>()});
  }
  return bucket;
}

// The first checkpoints have one slot; a sum over the wider bucket may round differently, but a run
// that continues them uses another ddprun anyway.
void AddMissingControlSlots(BucketLayout& layout) {
  const auto control = static_cast<size_t>(layout.control_bucket);
  if (control >= layout.buckets.size()) return;
  Bucket& bucket = layout.buckets[control];
  if (bucket.numel == layout.control_offset + 1) {
    bucket.numel = layout.control_offset + kControlSlots;
  }
}

}  // namespace

std::string BucketLayoutToJson(const BucketLayout& layout,
                               absl::Span<const BucketParameter> parameters) {
  Json buckets = Json::array();
  for (const Bucket& bucket : layout.buckets) {
    Json entries = Json::array();
    for (const BucketEntry& entry : bucket.entries) {
      entries.push_back({{"name", parameters[static_cast<size_t>(entry.parameter)].name},
                         {"offset", entry.offset},
                         {"numel", entry.numel}});
    }
    buckets.push_back(
        {{"dtype", bucket.dtype}, {"numel", bucket.numel}, {"entries", std::move(entries)}});
  }
  const Json json = {
      {"version", kVersion},
      {"control", {{"bucket", layout.control_bucket}, {"offset", layout.control_offset}}},
      {"buckets", std::move(buckets)}};
  return json.dump();
}

absl::StatusOr<BucketLayout> BucketLayoutFromJson(const std::string& json,
                                                  absl::Span<const BucketParameter> parameters) {
  std::map<std::string, int> index_of;
  for (size_t i = 0; i < parameters.size(); ++i) {
    index_of[parameters[i].name] = static_cast<int>(i);
  }
  BucketLayout layout;
  try {
    const Json root = Json::parse(json);
    if (root.at("version").get<int>() != kVersion) {
      return Bad(
          absl::StrCat("its version is ", root.at("version").get<int>(), ", known is ", kVersion));
    }
    layout.control_bucket = root.at("control").at("bucket").get<int>();
    layout.control_offset = root.at("control").at("offset").get<int64_t>();
    for (const Json& item : root.at("buckets")) {
      absl::StatusOr<Bucket> bucket = ReadBucket(item, index_of);
      if (!bucket.ok()) return bucket.status();
      layout.buckets.push_back(*std::move(bucket));
    }
  } catch (const nlohmann::json::exception& error) {
    return Bad(error.what());
  }
  AddMissingControlSlots(layout);
  const absl::Status status = ValidateBucketLayout(layout, parameters);
  if (!status.ok()) return Bad(std::string(status.message()));
  return layout;
}

}  // namespace ddprun
