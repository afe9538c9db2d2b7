#include "worker/model/layers/script_digest.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"

namespace ddprun {
namespace {

// The other records of the archive are the values of tensors, and numbers of the archive's own.
bool IsOfTheFunction(const std::string& record) {
  if (absl::EndsWith(record, ".debug_pkl")) return false;
  return absl::StartsWith(record, "code/") || absl::StartsWith(record, "constants") ||
         record == "data.pkl";
}

}  // namespace

absl::StatusOr<std::string> ScriptModuleDigest(const std::string& path) {
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    std::vector<std::string> records = reader.getAllRecords();
    std::sort(records.begin(), records.end());
    Xxh3Stream stream;
    for (const std::string& record : records) {
      if (!IsOfTheFunction(record)) continue;
      const auto [data, size] = reader.getRecord(record);
      stream.UpdateU64(record.size());
      stream.Update(record.data(), record.size());
      stream.UpdateU64(size);
      stream.Update(data.get(), size);
    }
    return HashHex(stream.Finish());
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("[model] file: ", path, ": cannot be read: ", error.what()));
  }
}

}  // namespace ddprun
