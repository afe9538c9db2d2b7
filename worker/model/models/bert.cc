// bert: an encoder (Devlin et al., "BERT", 2018) with a score for each word at each place, for the
// masked-token task: {n, length} → {n, length, vocabulary}. Defaults are those of BERT-large.
//
// Blocks: "embedding" (token + position, normalised), "layers.<i>" (attention and feed-forward,
// each added to its input and normalised after it), "head" (linear).
#include "absl/strings/str_cat.h"
#include "worker/model/layers/transformer.h"

namespace ddprun {
namespace {

class BertEmbedding : public Block {
 public:
  explicit BertEmbedding(const TransformerSizes& sizes) : dropout_(sizes.dropout) {
    token_ = register_module("token", std::make_shared<Embedding>(sizes.vocab_size, sizes.d_model));
    position_ = register_module("position",
                                std::make_shared<Embedding>(sizes.sequence_length, sizes.d_model));
    norm_ = register_module("norm", std::make_shared<LayerNorm>(sizes.d_model));
  }
  at::Tensor forward(const at::Tensor& tokens) override {
    const at::Tensor positions = position_->weight().narrow(0, 0, tokens.size(1));
    return at::dropout(norm_->forward(token_->forward(tokens) + positions), dropout_,
                       is_training());
  }

 private:
  const double dropout_;
  std::shared_ptr<Embedding> token_;
  std::shared_ptr<Embedding> position_;
  std::shared_ptr<LayerNorm> norm_;
};

class BertLayer : public Block {
 public:
  explicit BertLayer(const TransformerSizes& sizes) : heads_(sizes.heads), dropout_(sizes.dropout) {
    const int64_t width = sizes.d_model;
    qkv_ = register_module("qkv", std::make_shared<Linear>(width, 3 * width));
    o_ = register_module("o", std::make_shared<Linear>(width, width));
    n1_ = register_module("n1", std::make_shared<LayerNorm>(width));
    f1_ = register_module("f1", std::make_shared<Linear>(width, sizes.d_ff));
    f2_ = register_module("f2", std::make_shared<Linear>(sizes.d_ff, width));
    n2_ = register_module("n2", std::make_shared<LayerNorm>(width));
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor mixed =
        Attention(qkv_->forward(input), heads_, /*causal=*/false, is_training() ? dropout_ : 0.0);
    const at::Tensor attended = n1_->forward(input + Drop(o_->forward(mixed)));
    const at::Tensor fed = f2_->forward(at::gelu(f1_->forward(attended)));
    return n2_->forward(attended + Drop(fed));
  }

 private:
  at::Tensor Drop(const at::Tensor& input) const {
    return at::dropout(input, dropout_, is_training());
  }

  const int64_t heads_;
  const double dropout_;
  std::shared_ptr<Linear> qkv_;
  std::shared_ptr<Linear> o_;
  std::shared_ptr<LayerNorm> n1_;
  std::shared_ptr<Linear> f1_;
  std::shared_ptr<Linear> f2_;
  std::shared_ptr<LayerNorm> n2_;
};

class BertHead : public Block {
 public:
  explicit BertHead(const TransformerSizes& sizes) : scores_(sizes.d_model, sizes.vocab_size) {
    // The layer's own names are the block's: "head.weight", "head.bias".
    for (const auto& item : scores_.named_parameters()) {
      register_parameter(item.key(), item.value());
    }
  }
  at::Tensor forward(const at::Tensor& input) override { return scores_.forward(input); }

 private:
  Linear scores_;
};

absl::StatusOr<Model> MakeBert(const ModelContext& context) {
  absl::StatusOr<TransformerSizes> sizes =
      ReadTransformerSizes(context, {.d_model = 1024, .heads = 16, .layers = 24});
  if (!sizes.ok()) return sizes.status();
  std::vector<NamedBlock> blocks = {{"embedding", std::make_shared<BertEmbedding>(*sizes)}};
  for (int64_t i = 0; i < sizes->layers; ++i) {
    blocks.push_back({absl::StrCat("layers.", i), std::make_shared<BertLayer>(*sizes)});
  }
  blocks.push_back({"head", std::make_shared<BertHead>(*sizes)});
  return Model(std::move(blocks));
}

}  // namespace

extern const ModelEntry model_bert;
const ModelEntry model_bert = {&MakeBert};

}  // namespace ddprun
