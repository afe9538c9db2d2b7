// The model of docs/adding_a_model.md is examples/my_model/mlp.cc, and it trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "worker/model/loss.h"
#include "worker/model/model.h"
#include "worker/trainer/optimizer.h"

namespace ddprun {

extern const ModelEntry model_mlp;  // examples/my_model/mlp.cc, linked into this test

namespace {

std::string ReadSource(const std::string& path) {
  std::ifstream file(absl::StrCat(std::getenv("DDPRUN_SOURCE"), "/", path));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ModelsExampleTest, TheCodeOfTheDocumentIsTheExample) {
  const std::string code = ReadSource("examples/my_model/mlp.cc");
  ASSERT_FALSE(code.empty());
  EXPECT_THAT(ReadSource("docs/adding_a_model.md"),
              ::testing::HasSubstr(absl::StrCat("```cpp\n", code, "```\n")));
}

TEST(ModelsExampleTest, ItTrains) {
  TrainConfig config;
  config.model_name = "mlp";
  absl::StatusOr<Model> model = model_mlp.make({config, {.input_shape = {1, 8, 8}, .classes = 4}});
  ASSERT_TRUE(model.ok()) << model.status();
  model->set_loss(MakeCrossEntropy(0));
  const auto optimizer = *CreateOptimizer(config, model->Parameters());
  const at::Tensor input = at::rand({16, 1, 8, 8});
  const at::Tensor targets = at::arange(16, at::kLong).remainder(4);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 20; ++step) {
    for (const NamedTensor& item : model->Parameters()) item.tensor.mutable_grad() = at::Tensor();
    const at::Tensor loss = model->loss().Compute(model->Forward(input, 0, 2), targets);
    loss.backward();
    optimizer->Step(0.01);
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, first / 2);
  EXPECT_EQ(model->Parameters().back().name, "fc2.bias");
  EXPECT_EQ(model_mlp.make({config, {.input_shape = {8}, .classes = 4}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ddprun
