#include "worker/model/layers/transformer.h"

#include "absl/strings/str_cat.h"
#include "common/config/token_sizes.h"

namespace ddprun {
namespace {

at::Tensor Drawn(int64_t rows, int64_t columns, double deviation) {
  return at::empty({rows, columns}).normal_(0.0, deviation);
}

absl::Status BadSize(const std::string& key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("[model] ", key, ": ", what));
}

absl::Status CheckTokens(const ModelContext& context, const TransformerSizes& sizes) {
  const TrainConfig& config = context.config;
  const SampleSpec& data = context.data;
  if (data.input_type != InputType::kInt64 || data.input_shape.size() != 1 ||
      data.target_shape != data.input_shape) {
    return BadSize("name", absl::StrCat(config.model_name, " takes tokens with a target for each, ",
                                        "[data] kind \"", config.data_kind, "\" gives others"));
  }
  if (data.classes > sizes.vocab_size) {
    return BadSize("vocab_size",
                   absl::StrCat("is ", sizes.vocab_size, ", the data have tokens up to ",
                                data.classes - 1, "; make it at least ", data.classes));
  }
  if (data.input_shape[0] > sizes.sequence_length) {
    return BadSize("sequence_length",
                   absl::StrCat("is ", sizes.sequence_length, ", the data give sequences of ",
                                data.input_shape[0], " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TransformerSizes> ReadTransformerSizes(const ModelContext& context,
                                                      TransformerSizes defaults) {
  const TrainConfig& config = context.config;
  const TokenSizes tokens = ResolveTokenSizes(config);
  TransformerSizes sizes = defaults;
  sizes.vocab_size = tokens.vocab_size;
  sizes.sequence_length = tokens.sequence_length;
  sizes.dropout = config.model_dropout;
  if (config.model_d_model > 0) sizes.d_model = config.model_d_model;
  if (config.model_heads > 0) sizes.heads = config.model_heads;
  if (config.model_layers > 0) sizes.layers = config.model_layers;
  sizes.d_ff = config.model_d_ff > 0 ? config.model_d_ff : 4 * sizes.d_model;
  if (sizes.d_model % sizes.heads != 0) {
    return BadSize("heads", absl::StrCat("is ", sizes.heads,
                                         ", which does not divide d_model = ", sizes.d_model));
  }
  if (absl::Status status = CheckTokens(context, sizes); !status.ok()) return status;
  return sizes;
}

Linear::Linear(int64_t inputs, int64_t outputs, double deviation)
    : weight_(register_parameter("weight", Drawn(outputs, inputs, deviation))),
      bias_(register_parameter("bias", at::zeros({outputs}))) {}

LayerNorm::LayerNorm(int64_t width)
    : weight_(register_parameter("weight", at::ones({width}))),
      bias_(register_parameter("bias", at::zeros({width}))) {}

Embedding::Embedding(int64_t rows, int64_t width)
    : weight_(register_parameter("weight", Drawn(rows, width, kWeightDeviation))) {}

at::Tensor Attention(const at::Tensor& queries_keys_values, int64_t heads, bool causal,
                     double dropout) {
  const int64_t batch = queries_keys_values.size(0);
  const int64_t length = queries_keys_values.size(1);
  const int64_t width = queries_keys_values.size(2) / 3;
  const std::vector<at::Tensor> parts =
      queries_keys_values.view({batch, length, 3, heads, width / heads})
          .permute({2, 0, 3, 1, 4})
          .unbind(0);
  return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{}, dropout,
                                          causal)
      .transpose(1, 2)
      .reshape({batch, length, width});
}

}  // namespace ddprun
