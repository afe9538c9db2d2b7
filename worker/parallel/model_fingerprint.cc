#include "worker/parallel/model_fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ddprun {
namespace {

// A published value holds at most 32 KiB; a long description travels in parts.
constexpr size_t kPartBytes = 24 * 1024;
constexpr size_t kPartsMax = 256;

std::string PartName(size_t part) {
  return absl::StrCat("model.text.", part);
}

absl::Status PublishModel(const std::string& description, const std::string& group,
                          const Exchange& exchange) {
  const size_t parts = (description.size() + kPartBytes - 1) / kPartBytes;
  if (parts > kPartsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the description of the model has ",
                                                     description.size(), " bytes; at most ",
                                                     kPartsMax * kPartBytes, " can be compared"));
  }
  for (size_t part = 0; part < parts; ++part) {
    const std::string text = description.substr(part * kPartBytes, kPartBytes);
    absl::Status status = exchange.publish(group, PartName(part), text);
    if (!status.ok()) return status;
  }
  return exchange.publish(group, "model.fingerprint",
                          absl::StrCat(ModelFingerprint(description), " ", parts));
}

}  // namespace

std::string DescribeModel(absl::Span<const TensorDescription> tensors) {
  std::string text;
  for (const TensorDescription& tensor : tensors) {
    absl::StrAppend(&text, tensor.is_buffer ? "buffer " : "parameter ", tensor.name, " ",
                    tensor.dtype, " [", absl::StrJoin(tensor.shape, ", "), "]\n");
  }
  return text;
}

std::string ModelFingerprint(const std::string& description) {
  const XXH128_hash_t hash = XXH3_128bits(description.data(), description.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

absl::Status CompareModels(const std::string& mine, int my_rank, const std::string& theirs,
                           int their_rank) {
  if (mine == theirs) return absl::OkStatus();
  const std::vector<std::string> ours = absl::StrSplit(mine, '\n', absl::SkipEmpty());
  const std::vector<std::string> other = absl::StrSplit(theirs, '\n', absl::SkipEmpty());
  size_t i = 0;
  while (i < std::min(ours.size(), other.size()) && ours[i] == other[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() ? absl::StrCat("'", lines[i], "'") : std::string("nothing");
  };
  return absl::FailedPreconditionError(
      absl::StrCat("the ranks do not train the same model: tensor number ", i + 1, " is ",
                   line(ours), " on rank ", my_rank, " and ", line(other), " on rank ", their_rank,
                   "; give every rank the same program and configuration"));
}

absl::Status AgreeOnModel(const std::string& description, const std::string& group, int rank,
                          int size, const Exchange& exchange, double timeout_seconds) {
  if (size == 1) return absl::OkStatus();
  if (rank == 0) return PublishModel(description, group, exchange);
  auto head = exchange.await(group, "model.fingerprint", timeout_seconds);
  if (!head.ok()) return head.status();
  const std::vector<std::string> fields = absl::StrSplit(*head, ' ');
  if (fields[0] == ModelFingerprint(description)) return absl::OkStatus();
  uint64_t parts = 0;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[1], &parts) || parts > kPartsMax) {
    return absl::InternalError(absl::StrCat("rank 0 published no fingerprint: '", *head, "'"));
  }
  std::string theirs;
  for (size_t part = 0; part < parts; ++part) {
    auto text = exchange.await(group, PartName(part), timeout_seconds);
    if (!text.ok()) return text.status();
    theirs += *text;
  }
  return CompareModels(description, rank, theirs, 0);
}

}  // namespace ddprun
