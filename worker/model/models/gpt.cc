// gpt: a decoder (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) that
// scores the next token at each place: {n, length} → {n, length, vocabulary}. Defaults are those of
// GPT-2 with 124 M parameters.
//
// Blocks: the embedding ("wte", "wpe"), "h.<i>" (attention and feed-forward, each on the normalised
// input and added to it), the head (norm, then products with the token embedding: the very tensor
// of the first block, listed once as "wte.weight").
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/model/layers/transformer.h"

namespace ddprun {
namespace {

class GptEmbedding : public Block {
 public:
  explicit GptEmbedding(const TransformerSizes& sizes) : dropout_(sizes.dropout) {
    wte_ = register_module("wte", std::make_shared<Embedding>(sizes.vocab_size, sizes.d_model));
    wpe_ =
        register_module("wpe", std::make_shared<Embedding>(sizes.sequence_length, sizes.d_model));
  }
  at::Tensor forward(const at::Tensor& tokens) override {
    const at::Tensor positions = wpe_->weight().narrow(0, 0, tokens.size(1));
    return at::dropout(wte_->forward(tokens) + positions, dropout_, is_training());
  }
  const std::shared_ptr<Embedding>& wte() const { return wte_; }

 private:
  const double dropout_;
  std::shared_ptr<Embedding> wte_;
  std::shared_ptr<Embedding> wpe_;
};

class GptAttention : public torch::nn::Module {
 public:
  GptAttention(const TransformerSizes& sizes, double residual_deviation)
      : heads_(sizes.heads), dropout_(sizes.dropout) {
    const int64_t width = sizes.d_model;
    c_attn_ = register_module("c_attn", std::make_shared<Linear>(width, 3 * width));
    c_proj_ = register_module("c_proj", std::make_shared<Linear>(width, width, residual_deviation));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor mixed =
        Attention(c_attn_->forward(input), heads_, /*causal=*/true, is_training() ? dropout_ : 0.0);
    return at::dropout(c_proj_->forward(mixed), dropout_, is_training());
  }

 private:
  const int64_t heads_;
  const double dropout_;
  std::shared_ptr<Linear> c_attn_;
  std::shared_ptr<Linear> c_proj_;
};

class GptFeedForward : public torch::nn::Module {
 public:
  GptFeedForward(const TransformerSizes& sizes, double residual_deviation)
      : dropout_(sizes.dropout) {
    c_fc_ = register_module("c_fc", std::make_shared<Linear>(sizes.d_model, sizes.d_ff));
    c_proj_ = register_module(
        "c_proj", std::make_shared<Linear>(sizes.d_ff, sizes.d_model, residual_deviation));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor fed = c_proj_->forward(at::gelu(c_fc_->forward(input)));
    return at::dropout(fed, dropout_, is_training());
  }

 private:
  const double dropout_;
  std::shared_ptr<Linear> c_fc_;
  std::shared_ptr<Linear> c_proj_;
};

class GptLayer : public Block {
 public:
  explicit GptLayer(const TransformerSizes& sizes) {
    // Each layer adds twice to what flows through all of them; so the sum keeps its size.
    const double residual = kWeightDeviation / std::sqrt(2.0 * static_cast<double>(sizes.layers));
    ln_1_ = register_module("ln_1", std::make_shared<LayerNorm>(sizes.d_model));
    attn_ = register_module("attn", std::make_shared<GptAttention>(sizes, residual));
    ln_2_ = register_module("ln_2", std::make_shared<LayerNorm>(sizes.d_model));
    mlp_ = register_module("mlp", std::make_shared<GptFeedForward>(sizes, residual));
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor attended = input + attn_->forward(ln_1_->forward(input));
    return attended + mlp_->forward(ln_2_->forward(attended));
  }

 private:
  std::shared_ptr<LayerNorm> ln_1_;
  std::shared_ptr<GptAttention> attn_;
  std::shared_ptr<LayerNorm> ln_2_;
  std::shared_ptr<GptFeedForward> mlp_;
};

class GptHead : public Block {
 public:
  GptHead(const TransformerSizes& sizes, std::shared_ptr<Embedding> tied)
      : ln_f_(register_module("ln_f", std::make_shared<LayerNorm>(sizes.d_model))),
        wte_(register_module("wte", std::move(tied))) {}
  at::Tensor forward(const at::Tensor& input) override {
    return at::linear(ln_f_->forward(input), wte_->weight());
  }

 private:
  std::shared_ptr<LayerNorm> ln_f_;
  std::shared_ptr<Embedding> wte_;
};

absl::StatusOr<Model> MakeGpt(const ModelContext& context) {
  absl::StatusOr<TransformerSizes> sizes =
      ReadTransformerSizes(context, {.d_model = 768, .heads = 12, .layers = 12});
  if (!sizes.ok()) return sizes.status();
  const auto embedding = std::make_shared<GptEmbedding>(*sizes);
  std::vector<NamedBlock> blocks = {{"", embedding}};
  for (int64_t i = 0; i < sizes->layers; ++i) {
    blocks.push_back({absl::StrCat("h.", i), std::make_shared<GptLayer>(*sizes)});
  }
  blocks.push_back({"", std::make_shared<GptHead>(*sizes, embedding->wte())});
  Model model(std::move(blocks));
  model.set_tied_names({{"lm_head.weight", "wte.weight"}});
  return model;
}

}  // namespace

extern const ModelEntry model_gpt;
const ModelEntry model_gpt = {&MakeGpt};

}  // namespace ddprun
