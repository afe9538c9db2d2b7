#include "worker/trainer/same_data.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker/trainer/gather.h"

namespace ddprun {
namespace {

// Groups of ranks that are named beside rank 0.
constexpr size_t kNamedMax = 4;

}  // namespace

std::string DescribeData(const Dataset& data) {
  const SampleSpec spec = data.spec();
  std::string text =
      absl::StrCat(data.size(), " samples of shape [", absl::StrJoin(spec.input_shape, ", "),
                   "] in ", spec.classes, " classes");
  if (!spec.target_shape.empty()) {
    absl::StrAppend(&text, ", targets of shape [", absl::StrJoin(spec.target_shape, ", "), "]");
  }
  return absl::StrFormat("%s, digest %016x", text, data.Digest());
}

absl::Status CompareOnRanks(const std::vector<std::string>& by_rank,
                            const std::vector<std::string>& hosts, const std::string& what,
                            const std::string& advice) {
  std::string others;
  size_t named = 0;
  for (const RankGroup& group : GroupRanks(by_rank, hosts)) {
    if (group.text == by_rank[0] || ++named > kNamedMax) continue;
    absl::StrAppend(&others, "; ", RankList(group.ranks), " on ", group.host, ": ", group.text);
  }
  if (named == 0) return absl::OkStatus();
  if (named > kNamedMax) absl::StrAppend(&others, "; and more");
  return absl::FailedPreconditionError(absl::StrCat("the ranks do not have the same ", what,
                                                    ": rank 0 on ", hosts[0], ": ", by_rank[0],
                                                    others, ". ", advice));
}

absl::Status CompareData(const std::vector<std::string>& by_rank,
                         const std::vector<std::string>& hosts, const std::string& split,
                         const std::string& dir) {
  return CompareOnRanks(
      by_rank, hosts, split + " data",
      absl::StrCat("Each takes its part of the same samples, so [data] dir (", dir,
                   ") must hold the same files on every machine; the digest is one of what is read "
                   "of them at the start: names, sizes, labels, mean and deviation"));
}

absl::Status AgreeOnData(const Dataset& data, const std::vector<std::string>& hosts,
                         const std::string& split, const std::string& dir,
                         Communicator* communicator, const at::Device& device) {
  absl::StatusOr<std::vector<std::string>> all =
      GatherText(DescribeData(data), communicator, device);
  if (!all.ok()) return all.status();
  return CompareData(*all, hosts, split, dir);
}

}  // namespace ddprun
