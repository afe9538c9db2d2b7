#include "worker/trainer/gather.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

constexpr size_t kTextBytes = 256;

// `mine`: one dimension, on the CPU. {ranks, n} on the CPU.
absl::StatusOr<at::Tensor> GatherTensor(const at::Tensor& mine, DataType type,
                                        Communicator* communicator, const at::Device& device) {
  if (communicator == nullptr) return mine.unsqueeze(0);
  const at::Tensor input = mine.to(device);
  const at::Tensor all = at::empty({communicator->size(), mine.numel()}, input.options());
  const WorkPtr work = communicator->AllGather(input.data_ptr(), all.data_ptr(),
                                               static_cast<size_t>(mine.numel()), type);
  if (absl::Status status = work->WaitHost(); !status.ok()) return status;
  return all.cpu();
}

template <typename T>
absl::StatusOr<std::vector<std::vector<T>>> Gather(const std::vector<T>& mine,
                                                   at::ScalarType scalar, DataType type,
                                                   Communicator* communicator,
                                                   const at::Device& device) {
  const at::Tensor input = at::tensor(mine, at::dtype(scalar));
  absl::StatusOr<at::Tensor> all = GatherTensor(input, type, communicator, device);
  if (!all.ok()) return all.status();
  std::vector<std::vector<T>> result;
  result.reserve(static_cast<size_t>(all->size(0)));
  const T* data = all->template data_ptr<T>();
  for (int64_t rank = 0; rank < all->size(0); ++rank) {
    result.emplace_back(data + rank * input.numel(), data + (rank + 1) * input.numel());
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int64_t>>> GatherIntegers(const std::vector<int64_t>& mine,
                                                                 Communicator* communicator,
                                                                 const at::Device& device) {
  return Gather(mine, at::kLong, DataType::kInt64, communicator, device);
}

absl::StatusOr<std::vector<std::vector<double>>> GatherNumbers(const std::vector<double>& mine,
                                                               Communicator* communicator,
                                                               const at::Device& device) {
  return Gather(mine, at::kDouble, DataType::kFloat64, communicator, device);
}

absl::StatusOr<std::vector<std::string>> GatherText(const std::string& mine,
                                                    Communicator* communicator,
                                                    const at::Device& device) {
  std::vector<uint8_t> bytes(kTextBytes, 0);
  std::copy_n(mine.begin(), std::min(mine.size(), kTextBytes - 1), bytes.begin());
  absl::StatusOr<std::vector<std::vector<uint8_t>>> all =
      Gather(bytes, at::kByte, DataType::kUInt8, communicator, device);
  if (!all.ok()) return all.status();
  std::vector<std::string> texts;
  for (const std::vector<uint8_t>& text : *all) {
    texts.emplace_back(text.begin(), std::find(text.begin(), text.end(), 0));
  }
  return texts;
}

std::vector<RankGroup> GroupRanks(const std::vector<std::string>& texts,
                                  const std::vector<std::string>& hosts) {
  std::vector<RankGroup> groups;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto same = [&](const RankGroup& group) {
      return group.text == texts[rank] && group.host == hosts[rank];
    };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) {
      group = groups.insert(group, RankGroup{texts[rank], hosts[rank], {}});
    }
    group->ranks.push_back(static_cast<int>(rank));
  }
  return groups;
}

std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) absl::StrAppend(&text, ", ");
    absl::StrAppend(&text, ranks[i]);
    if (last > i) absl::StrAppend(&text, last == i + 1 ? ", " : "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace ddprun
