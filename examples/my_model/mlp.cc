// mlp: two linear layers with ReLU between them, for images of any size.
#include "worker/model/layers/classes.h"
#include "worker/model/model.h"

namespace ddprun {
namespace {

constexpr int64_t kHidden = 128;

class Hidden : public Block {
 public:
  explicit Hidden(int64_t inputs)
      : fc1_(register_module("fc1", torch::nn::Linear(inputs, kHidden))) {}
  at::Tensor forward(const at::Tensor& input) override {
    return at::relu(fc1_(at::flatten(input, 1)));
  }

 private:
  torch::nn::Linear fc1_;
};

class Scores : public Block {
 public:
  explicit Scores(int64_t classes)
      : fc2_(register_module("fc2", torch::nn::Linear(kHidden, classes))) {}
  at::Tensor forward(const at::Tensor& input) override { return fc2_(input); }

 private:
  torch::nn::Linear fc2_;
};

absl::StatusOr<Model> MakeMlp(const ModelContext& context) {
  if (absl::Status status = CheckImages(context); !status.ok()) return status;
  absl::StatusOr<int64_t> classes = ChooseClasses(context);
  if (!classes.ok()) return classes.status();
  // Two statements: the order in which random numbers are drawn is part of the result.
  auto hidden = std::make_shared<Hidden>(ElementCount(context.data.input_shape));
  auto scores = std::make_shared<Scores>(*classes);
  return Model({{"", std::move(hidden)}, {"", std::move(scores)}});
}

}  // namespace

extern const ModelEntry model_mlp;
const ModelEntry model_mlp = {&MakeMlp};

}  // namespace ddprun
