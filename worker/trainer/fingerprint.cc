#include "worker/trainer/fingerprint.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "worker/trainer/gather.h"

namespace ddprun {
namespace {

constexpr size_t kNamesMax = 3;
// Elements that are widened to 64 bits at once: 32 MiB.
constexpr int64_t kChunk = 4 << 20;

at::ScalarType IntegerOf(size_t bytes) {
  switch (bytes) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

// {sum, weighted sum} on the tensor's device.
at::Tensor Sums(const at::Tensor& tensor) {
  const at::Tensor whole =
      tensor.detach().contiguous().view({-1}).view(IntegerOf(tensor.element_size()));
  const auto wide = at::dtype(at::kLong).device(tensor.device());
  at::Tensor sum = at::zeros({}, wide);
  at::Tensor weighted = at::zeros({}, wide);
  for (int64_t begin = 0; begin < whole.numel(); begin += kChunk) {
    const int64_t count = std::min(kChunk, whole.numel() - begin);
    const at::Tensor part = whole.narrow(0, begin, count).to(at::kLong);
    sum += part.sum();
    weighted += (part * at::arange(begin + 1, begin + count + 1, wide)).sum();
  }
  return at::stack({sum, weighted});
}

int64_t Combine(const int64_t* numbers, size_t count) {
  return static_cast<int64_t>(Xxh3(numbers, count * sizeof(int64_t)).low);
}

std::string Differing(const std::vector<int64_t>& mine, const std::vector<int64_t>& reference,
                      const std::vector<std::string>& names) {
  std::string text;
  size_t count = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (mine[i] == reference[i] || ++count > kNamesMax) continue;
    absl::StrAppend(&text, count == 1 ? "" : ", ", names[i]);
  }
  if (count > kNamesMax) absl::StrAppend(&text, " and ", count - kNamesMax, " more");
  return text;
}

constexpr char kAdvice[] =
    ". Weights must be equal to the last bit after every update: look for faulty memory or a bad "
    "link of that machine, or for processors of different models; no checkpoint of this state was "
    "written (checks.fingerprint_every_steps)";

}  // namespace

int64_t DigestBySums(const at::Tensor& tensor) {
  const at::Tensor sums = Sums(tensor).cpu();
  return Combine(sums.data_ptr<int64_t>(), 2);
}

std::vector<int64_t> DigestTensors(const std::vector<NamedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> digests;
  std::vector<at::Tensor> sums;
  for (const NamedTensor& item : tensors) {
    if (item.tensor.is_cpu()) {
      const at::Tensor bytes = item.tensor.detach().contiguous();
      digests.push_back(static_cast<int64_t>(Xxh3(bytes.data_ptr(), bytes.nbytes()).low));
    } else {
      sums.push_back(Sums(item.tensor));
    }
  }
  if (sums.empty()) return digests;
  const at::Tensor all = at::stack(sums).cpu();  // one copy, which waits for the device
  for (int64_t i = 0; i < all.size(0); ++i) {
    digests.push_back(Combine(all.data_ptr<int64_t>() + 2 * i, 2));
  }
  return digests;
}

absl::Status CompareDigests(const std::vector<std::vector<int64_t>>& by_rank,
                            const std::vector<std::string>& names, int rank, int64_t step) {
  std::map<std::vector<int64_t>, std::vector<int>> groups;
  for (size_t i = 0; i < by_rank.size(); ++i) groups[by_rank[i]].push_back(static_cast<int>(i));
  if (groups.size() <= 1) return absl::OkStatus();
  const auto largest = std::max_element(
      groups.begin(), groups.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  const bool majority = 2 * largest->second.size() > by_rank.size();
  // Without a majority nobody is known to be right, so all are compared with rank 0.
  const std::vector<int64_t>& reference = majority ? largest->first : by_rank[0];
  std::vector<int> others;
  for (size_t i = 0; i < by_rank.size(); ++i) {
    if (by_rank[i] != reference) others.push_back(static_cast<int>(i));
  }
  const std::string what = absl::StrCat(
      "step ", step, ": the weights of ", RankList(others), " differ from those of ",
      majority ? "the other ranks" : "rank 0", ", first in ",
      Differing(by_rank[static_cast<size_t>(others.front())], reference, names),
      majority ? "" : "; with as many ranks on each side it cannot be told which are right",
      kAdvice);
  const bool to_blame = !majority || by_rank[static_cast<size_t>(rank)] != reference;
  return to_blame ? absl::InternalError(what) : absl::UnavailableError(what);
}

absl::Status CheckFingerprints(const std::vector<NamedTensor>& tensors, int rank, int64_t step,
                               Communicator* communicator, const at::Device& device) {
  if (communicator == nullptr) return absl::OkStatus();
  const std::vector<int64_t> digests = DigestTensors(tensors);
  absl::StatusOr<std::vector<std::vector<int64_t>>> all =
      GatherIntegers({Combine(digests.data(), digests.size())}, communicator, device);
  if (!all.ok()) return all.status();
  if (std::all_of(all->begin(), all->end(), [&](const auto& one) { return one == all->front(); }))
    return absl::OkStatus();
  all = GatherIntegers(digests, communicator, device);
  if (!all.ok()) return all.status();
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const NamedTensor& item : tensors) names.push_back(item.name);
  return CompareDigests(*all, names, rank, step);
}

}  // namespace ddprun
