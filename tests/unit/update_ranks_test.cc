// The update side among forked ranks over Gloo: what one rank's overflow means for all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/gloo_ranks.h"
#include "tests/unit/update_net.h"

namespace ddprun {
namespace {

using testing::Each;

TrainConfig Fp16(double clip_norm) {
  TrainConfig config;
  config.train_optimizer = "adamw";
  config.train_lr = 0.05;
  config.train_clip_norm = clip_norm;
  config.train_ema_decay = 0.9;
  config.precision_amp = "fp16";
  config.precision_loss_scale = 256;
  config.precision_loss_scale_growth_steps = 2;
  return config;
}

// Six updates; in the second only the last rank overflows (infinity), in the fourth only rank 0
// (NaN). Where `unused`, the second parameter is used by no rank in odd steps, and by rank 0 alone
// in even ones.
std::string Train(Communicator& communicator, const TrainConfig& config, bool unused) {
  UpdateNet net(config, &communicator);
  net.update->BeginRun();
  const int rank = communicator.rank();
  std::string scales;
  for (int step = 0; step < 6; ++step) {
    auto gradients = UpdateNet::Gradients(step + 10 * rank);
    if (unused && (step % 2 == 1 || rank > 0)) gradients[1] = at::Tensor();
    if (step == 1 && rank + 1 == communicator.size()) {
      gradients[0][2][3] = std::numeric_limits<float>::infinity();
    }
    if (step == 3 && rank == 0) gradients[0][0][0] = std::nanf("");
    const auto before = net.Values();
    if (absl::Status status = net.Step(step, gradients); !status.ok()) return status.ToString();
    const UpdateOutcome outcome = net.update->Outcome();
    absl::StrAppend(&scales, *outcome.loss_scale, outcome.skipped ? "! " : " ");
    if (outcome.skipped != (net.Values() == before)) return "skipped and unchanged do not agree";
    if (outcome.skipped != (step == 1 || step == 3)) return absl::StrCat("wrong skip at ", step);
  }
  if (scales != "256 256! 128 128! 64 64 ") return scales;
  // All bits of weights, optimizer and average, against rank 0's.
  std::vector<NamedTensor> all = net.update->State();
  for (const NamedTensor& item : net.update->AveragedWeights()) all.push_back(item);
  for (size_t i : {0, 1}) all.push_back({absl::StrCat("weight ", i), net.parameter(i).detach()});
  for (const NamedTensor& item : all) {
    at::Tensor theirs = item.tensor.clone();
    if (absl::Status status = BroadcastTensors({{item.name, theirs}}, &communicator);
        !status.ok()) {
      return status.ToString();
    }
    if (!at::equal(theirs, item.tensor)) return absl::StrCat(item.name, " differs from rank 0's");
    if (!theirs.isfinite().all().item<bool>()) return absl::StrCat(item.name, " is not finite");
  }
  return "";
}

// TR21, TR22, TR23: gradients are reduced before anyone looks at them, so all ranks see the
// overflow of one, also with clipping and with parameters that not all ranks use.
TEST(UpdateRanks, AnOverflowOfOneRankSkipsTheUpdateOnAllAndScalesStayEqual) {
  for (int size : {1, 2, 3}) {
    for (double clip_norm : {0.0, 0.5}) {
      for (bool unused : {false, true}) {
        const auto results = RunOverGloo(size, [&](Communicator& communicator) {
          return Train(communicator, Fp16(clip_norm), unused);
        });
        EXPECT_THAT(results, Each("")) << size << " ranks, clip_norm " << clip_norm << ", "
                                       << (unused ? "unused" : "all used");
      }
    }
  }
}

// MA5: clipping uses the norm of the averaged gradient, not those of the ranks.
TEST(UpdateRanks, ClippingUsesTheNormOfTheReducedGradients) {
  const auto results = RunOverGloo(2, [](Communicator& communicator) -> std::string {
    TrainConfig config;
    config.train_clip_norm = 0.5;
    UpdateNet net(config, &communicator);
    net.reducer->SetFlag(100);
    const auto mine = UpdateNet::Gradients(7 * communicator.rank());
    if (absl::Status status = net.Step(0, mine); !status.ok()) return status.ToString();
    double squares = 0;
    for (size_t i : {0, 1}) {
      const at::Tensor mean = (UpdateNet::Gradients(0)[i] + UpdateNet::Gradients(7)[i]) / 2;
      squares += mean.square().sum().item<double>();
    }
    const double norm = net.update->Outcome().grad_norm.value();
    if (std::abs(norm - std::sqrt(squares)) > 1e-5) return absl::StrCat("the norm is ", norm);
    if (net.reducer->control().flag != 100) return "the control value was changed";
    return "";
  });
  EXPECT_THAT(results, Each(""));
}

}  // namespace
}  // namespace ddprun
