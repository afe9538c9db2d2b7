#include "worker/checkpoint/snapshot.h"

#include <map>

#include "worker/checkpoint/tensor_format.h"

namespace ddprun {

absl::StatusOr<Snapshot> Snapshot::Create(const std::vector<NamedTensor>& tensors) {
  absl::StatusOr<std::vector<TensorInfo>> infos = TensorInfos(tensors);
  if (!infos.ok()) return infos.status();
  // "format" is what other readers of the format look for.
  absl::StatusOr<std::string> header = BuildSafetensorsHeader(&*infos, {{"format", "pt"}});
  if (!header.ok()) return header.status();
  Snapshot snapshot;
  snapshot.header_ = *std::move(header);
  const uint64_t bytes = infos->empty() ? 0 : infos->back().end;
  snapshot.buffer_ = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& item : tensors) by_name[item.name] = item.tensor;
  for (const TensorInfo& info : *infos) {
    const at::Tensor source = by_name[info.name].detach();
    // The layout puts larger elements first, so every view is aligned for its type.
    snapshot.views_.push_back(at::from_blob(snapshot.buffer_.data_ptr<uint8_t>() + info.begin,
                                            info.shape, at::TensorOptions(source.scalar_type())));
    snapshot.sources_.push_back(source);
  }
  return snapshot;
}

void Snapshot::Capture() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < views_.size(); ++i) views_[i].copy_(sources_[i]);
}

}  // namespace ddprun
