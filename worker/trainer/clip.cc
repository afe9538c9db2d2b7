#include "worker/trainer/clip.h"

namespace ddprun {
namespace {

// PyTorch's, against a division by a norm of zero.
constexpr double kNormEpsilon = 1e-6;

// On a CPU a norm is added up in float32, eight sums side by side: over the millions of elements of
// a bucket small ones would be lost (0.3 % of the norm of 4 million equal elements). So each row of
// this many elements gets its own norm first; the result does not depend on the threads either.
constexpr int64_t kRowElements = 1 << 14;

// Appends the norms of the rows of one flat tensor. They are kept in float32 also for gradients of
// 16 bits, which overflow at once.
void AppendNorms(const at::Tensor& flat, std::vector<at::Tensor>* norms) {
  const int64_t rows = flat.numel() / kRowElements;
  const int64_t in_rows = rows * kRowElements;
  if (rows > 0) {
    norms->push_back(at::linalg_vector_norm(flat.narrow(0, 0, in_rows).view({rows, kRowElements}),
                                            2, {1}, /*keepdim=*/false, at::kFloat));
  }
  if (in_rows == flat.numel()) return;
  const at::Tensor rest = flat.narrow(0, in_rows, flat.numel() - in_rows);
  norms->push_back(at::linalg_vector_norm(rest, 2, {0}, /*keepdim=*/true, at::kFloat));
}

}  // namespace

at::Tensor GlobalNorm(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& flat : gradients) AppendNorms(flat, &norms);
  return at::linalg_vector_norm(at::cat(norms), 2);
}

void ClipToNorm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const at::Tensor factor = (max_norm / (norm + kNormEpsilon)).clamp_max(1);
  // On a CPU the value is at hand, and a pass over all gradients that changes nothing is saved.
  if (factor.is_cpu() && factor.item<float>() == 1) return;
  at::_foreach_mul_(gradients, factor);
}

}  // namespace ddprun
