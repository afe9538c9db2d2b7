// The parts that transformers are made of: linear layers, layer norms, embeddings, and attention.
//
// Random draws: each weight of two dimensions once, normal(0, deviation), when it is constructed;
// biases begin with 0, layer norms with 1 and 0. So a network draws in the order of its parameters
// when its members are constructed in that order. Names and function are PyTorch's.
#pragma once

#include <torch/torch.h>

#include "absl/status/statusor.h"
#include "worker/model/model.h"

namespace ddprun {

inline constexpr double kWeightDeviation = 0.02;

// Sizes of a transformer, all resolved.
struct TransformerSizes {
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  int64_t heads = 0;
  int64_t layers = 0;
  int64_t d_ff = 0;
  int64_t sequence_length = 0;
  double dropout = 0;
};

// What the configuration says, with `defaults` for its zeros (vocab_size and sequence_length:
// ResolveTokenSizes). INVALID_ARGUMENT names the key when sizes do not fit each other, or the data
// are no tokens, have more of them than the vocabulary, or longer sequences.
absl::StatusOr<TransformerSizes> ReadTransformerSizes(const ModelContext& context,
                                                      TransformerSizes defaults);

class Linear : public torch::nn::Module {
 public:
  Linear(int64_t inputs, int64_t outputs, double deviation = kWeightDeviation);
  at::Tensor forward(const at::Tensor& input) { return at::linear(input, weight_, bias_); }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

class LayerNorm : public torch::nn::Module {
 public:
  explicit LayerNorm(int64_t width);
  at::Tensor forward(const at::Tensor& input) {
    return at::layer_norm(input, weight_.sizes(), weight_, bias_);
  }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

// A table of vectors under the name "weight".
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t rows, int64_t width);
  // {…} int64 → {…, width}
  at::Tensor forward(const at::Tensor& rows) { return at::embedding(weight_, rows); }
  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};

// Scaled dot product attention of {batch, length, 3·width}, which holds queries, keys and values
// one after the other, each of `heads` heads. `dropout`: of the attention's weights, from the
// device's generator. Gives {batch, length, width}.
at::Tensor Attention(const at::Tensor& queries_keys_values, int64_t heads, bool causal,
                     double dropout);

}  // namespace ddprun
