#include "worker/trainer/recompute.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <mutex>
#include <set>
#include <utility>

namespace ddprun {

struct RecomputedBlock {
  NamedBlock named;
  AutocastMode autocast;
  std::vector<at::Tensor> parameters;  // trainable ones
  std::vector<at::Tensor> buffers;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The generators that a forward may draw from.
class RandomState {
 public:
  explicit RandomState(const at::Device& device) {
    generators_.push_back(at::detail::getDefaultCPUGenerator());
    if (!device.is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(device));
    for (at::Generator& generator : generators_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      states_.push_back(generator.get_state());
    }
  }
  void Restore() {
    for (size_t i = 0; i < generators_.size(); ++i) {
      const std::lock_guard<std::mutex> lock(generators_[i].mutex());
      generators_[i].set_state(states_[i]);
    }
  }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// What one forward leaves for its repetition.
struct Repetition : torch::CustomClassHolder {
  Repetition(std::shared_ptr<const RecomputedBlock> the_block, const at::Device& device)
      : block(std::move(the_block)), random(device) {}
  std::shared_ptr<const RecomputedBlock> block;
  RandomState random;
  bool input_requires_grad = false;
};

// A parameter that the block uses without having it registered would silently get no gradient.
void CheckLeaves(const RecomputedBlock& block, const at::Tensor& input, const at::Tensor& output) {
  std::set<const void*> known = {input.unsafeGetTensorImpl()};
  for (const at::Tensor& parameter : block.parameters)
    known.insert(parameter.unsafeGetTensorImpl());
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> open = {output.grad_fn().get()};
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      TORCH_CHECK_VALUE(
          known.count(leaf->variable.unsafeGetTensorImpl()) != 0, "block '", block.named.name,
          "' of the model uses a parameter that is not registered in it, and cannot be "
          "recomputed; register it, or set precision.recompute = \"none\"");
    }
    for (const torch::autograd::Edge& edge : node->next_edges())
      open.push_back(edge.function.get());
  }
}

class RecomputeFunction : public torch::autograd::Function<RecomputeFunction> {
 public:
  static at::Tensor forward(AutogradContext* context,
                            const std::shared_ptr<const RecomputedBlock>& block,
                            const at::Tensor& input, at::TensorList /*parameters*/) {
    auto repetition = c10::make_intrusive<Repetition>(block, input.device());
    repetition->input_requires_grad = input.requires_grad();
    const auto version = input._version();
    at::Tensor output;
    {
      const AutocastScope autocast(block->autocast);
      // Weights that were cast without gradients must not be found by a block that records them.
      at::autocast::clear_cache();
      output = block->named.block->forward(input);
      at::autocast::clear_cache();
    }
    TORCH_CHECK_VALUE(input._version() == version, "block '", block->named.name,
                      "' of the model changes its input in place, and cannot be recomputed; set "
                      "precision.recompute = \"none\"");
    context->save_for_backward({input});
    context->saved_data["repetition"] = c10::IValue::make_capsule(std::move(repetition));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& output_grads) {
    const auto capsule = context->saved_data["repetition"].toCapsule();
    auto& repetition = static_cast<Repetition&>(*capsule);
    const RecomputedBlock& block = *repetition.block;
    at::Tensor input = context->get_saved_variables().front().detach();
    input.set_requires_grad(repetition.input_requires_grad);
    std::vector<at::Tensor> buffers;
    buffers.reserve(block.buffers.size());
    for (const at::Tensor& buffer : block.buffers) buffers.push_back(buffer.clone());
    const at::Tensor output = Repeat(repetition, input);
    // Nothing in the block depends on what records gradients.
    if (!output.requires_grad()) {
      PutBack(buffers, block);
      return variable_list(2 + block.parameters.size());
    }
    CheckLeaves(block, input, output);

    std::vector<at::Tensor> inputs = block.parameters;
    if (repetition.input_requires_grad) inputs.push_back(input);
    variable_list grads = torch::autograd::grad({output}, inputs, {output_grads.front()},
                                                /*retain_graph=*/std::nullopt,
                                                /*create_graph=*/false, /*allow_unused=*/true);
    // Only now: while a graph holds buffers, changing them makes its backward fail.
    PutBack(buffers, block);
    // In the order of forward's arguments: the block, the input, the parameters.
    variable_list result = {at::Tensor(), at::Tensor()};
    if (repetition.input_requires_grad) {
      result.back() = grads.back();
      grads.pop_back();
    }
    result.insert(result.end(), grads.begin(), grads.end());
    return result;
  }

 private:
  static void PutBack(const std::vector<at::Tensor>& buffers, const RecomputedBlock& block) {
    for (size_t i = 0; i < buffers.size(); ++i) block.buffers[i].detach().copy_(buffers[i]);
  }

  static at::Tensor Repeat(Repetition& repetition, const at::Tensor& input) {
    RandomState now(input.device());
    repetition.random.Restore();
    at::Tensor output;
    {
      const at::AutoGradMode record(true);
      const AutocastScope autocast(repetition.block->autocast);
      output = repetition.block->named.block->forward(input);
    }
    now.Restore();
    return output;
  }
};

}  // namespace

Recompute::Recompute(const Model& model, const AutocastMode& autocast) {
  for (const NamedBlock& named : model.blocks()) {
    auto block = std::make_shared<RecomputedBlock>();
    block->named = named;
    block->autocast = autocast;
    for (const at::Tensor& parameter : named.block->parameters()) {
      if (parameter.requires_grad()) block->parameters.push_back(parameter);
    }
    block->buffers = named.block->buffers();
    blocks_.push_back(std::move(block));
  }
}

Recompute::~Recompute() = default;

at::Tensor Recompute::Run(int index, const at::Tensor& input) const {
  const auto& block = blocks_[static_cast<size_t>(index)];
  // The parameters are named so that autograd makes them inputs of this node; it looks for tensors
  // in a TensorList, but not in a vector.
  return RecomputeFunction::apply(block, input, at::TensorList(block->parameters));
}

}  // namespace ddprun
