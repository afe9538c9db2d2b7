#include "worker/model/layers/script_module.h"

#include <sys/stat.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ddprun {
namespace {

// Enough for a module to show whether it keeps the batch apart.
constexpr int64_t kTrialSamples = 2;

// The one line that says what went wrong: LibTorch's messages hold stack traces, and those of the
// interpreter name the error at the end.
std::string OneLine(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  const std::string text = ours != nullptr ? ours->what_without_backtrace() : error.what();
  std::string first;
  std::string named;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (first.empty()) first = std::string(line);
    if (line.find("Error: ") != absl::string_view::npos) named = std::string(line);
  }
  return named.empty() ? first : named;
}

absl::Status BadModule(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("[model] file: ", path, ": ", what));
}

// forward(input), and nothing else that has no default.
absl::Status CheckForward(const torch::jit::Module& module, const std::string& path) {
  const auto forward = module.find_method("forward");
  if (!forward) return BadModule(path, "the module has no method forward");
  std::vector<std::string> inputs;
  const std::vector<c10::Argument>& arguments = forward->function().getSchema().arguments();
  for (size_t i = 1; i < arguments.size(); ++i) {  // the first is the module, whatever its name
    if (!arguments[i].default_value()) inputs.push_back(arguments[i].name());
  }
  if (inputs.size() == 1) return absl::OkStatus();
  return BadModule(
      path, absl::StrCat("forward takes ", inputs.size(), " inputs (", absl::StrJoin(inputs, ", "),
                         "); ddprun gives it one tensor, the batch"));
}

// Makes tensors that are the same memory one tensor again.
void TieAgain(torch::jit::Module* module) {
  using Place = std::tuple<const void*, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
  std::map<Place, at::Tensor> first;
  for (const auto& item : module->named_parameters()) {
    const at::Tensor& tensor = item.value;
    const Place place{tensor.storage().data(), tensor.storage_offset(), tensor.sizes().vec(),
                      tensor.strides().vec()};
    const auto [known, is_new] = first.emplace(place, tensor);
    if (is_new || known->second.is_same(tensor) || tensor.numel() == 0) continue;
    const std::vector<std::string> parts = absl::StrSplit(item.name, '.');
    torch::jit::Module owner = *module;
    for (size_t i = 0; i + 1 < parts.size(); ++i) owner = owner.attr(parts[i]).toModule();
    owner.setattr(parts.back(), known->second);
  }
}

// What torch::jit::load would wait for (a pipe), or only say in many words.
absl::Status CheckFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || access(path.c_str(), R_OK) != 0) {
    return BadModule(path, absl::StrCat("cannot be read: ", strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return BadModule(path, "is not a regular file");
  if (info.st_size == 0) return BadModule(path, "is empty; save the module again");
  return absl::OkStatus();
}

absl::StatusOr<torch::jit::Module> Read(const std::string& path) {
  try {
    return torch::jit::load(path, at::kCPU);
  } catch (const std::exception& error) {
    // The reader goes on with guesses about what may have happened to the file.
    const std::string text = OneLine(error);
    return BadModule(path, absl::StrCat("is no whole module that torch.jit.save wrote (",
                                        text.substr(0, text.find(". ")),
                                        "); save it by torch.jit.script(module).save(file)"));
  }
}

// The module's own loss.
class ScriptLoss : public Loss {
 public:
  ScriptLoss(torch::jit::Module module, bool classifies)
      : module_(std::move(module)), classifies_(classifies) {}
  at::Tensor Compute(const at::Tensor& output, const at::Tensor& targets) override {
    return module_.get_method("loss")({output, targets}).toTensor().to(at::kFloat);
  }
  bool classifies() const override { return classifies_; }

 private:
  torch::jit::Module module_;
  const bool classifies_;
};

at::Tensor Zeros(const std::vector<int64_t>& sample, at::ScalarType type) {
  std::vector<int64_t> shape = sample;
  shape.insert(shape.begin(), kTrialSamples);
  return at::zeros(shape, type);
}

// Scores along the last dimension, one row for each target.
bool AreScores(const at::Tensor& output, const SampleSpec& data) {
  std::vector<int64_t> rows = data.target_shape;
  rows.insert(rows.begin(), kTrialSamples);
  return output.is_floating_point() && output.dim() == static_cast<int64_t>(rows.size()) + 1 &&
         std::equal(rows.begin(), rows.end(), output.sizes().begin()) &&
         output.size(-1) >= data.classes;
}

std::string ReplacedText(const std::string& buffer) {
  return absl::StrCat("forward replaces the buffer '", buffer, "'; change it in place (", buffer,
                      ".copy_(…)), or checkpoints would miss it");
}

// What the module makes of zeros.
absl::StatusOr<at::Tensor> TryOutput(ScriptBlock* block, const ModelContext& context) {
  const SampleSpec& data = context.data;
  const auto type = data.input_type == InputType::kInt64 ? at::kLong : at::kFloat;
  const std::string& path = context.config.model_file;
  const std::string shape =
      absl::StrCat(kTrialSamples, " x ", absl::StrJoin(data.input_shape, " x "), " ",
                   type == at::kLong ? "int64" : "float32");
  const at::NoGradGuard no_grad;
  try {
    block->train(false);
    at::Tensor output = block->forward(Zeros(data.input_shape, type));
    block->train(true);
    if (const std::string replaced = block->ReplacedBuffer(); !replaced.empty()) {
      return BadModule(path, ReplacedText(replaced));
    }
    if (output.dim() > 0 && output.size(0) == kTrialSamples) return output;
    return BadModule(
        path, absl::StrCat("forward makes an output of ", absl::StrJoin(output.sizes(), " x "),
                           " from ", shape, ": the first dimension must stay the batch"));
  } catch (const std::exception& error) {
    return BadModule(path,
                     absl::StrCat("forward fails on the data's ", shape, ": ", OneLine(error)));
  }
}

// Null when the module has none of its own.
absl::StatusOr<std::shared_ptr<Loss>> TryLoss(const torch::jit::Module& module,
                                              const at::Tensor& output,
                                              const ModelContext& context) {
  const SampleSpec& data = context.data;
  const std::string& path = context.config.model_file;
  const bool scores = AreScores(output, data);
  if (!module.find_method("loss")) {
    if (scores) return nullptr;
    return BadModule(
        path, absl::StrCat("has no method loss, and its output of ",
                           absl::StrJoin(output.sizes(), " x "), " is no row of scores for ",
                           data.classes, " classes; export loss(output, targets) with the module"));
  }
  if (context.config.train_label_smoothing > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[train] label_smoothing: has no meaning with a module that has a loss of its own, as ",
        path, " has"));
  }
  const at::NoGradGuard no_grad;
  auto loss = std::make_shared<ScriptLoss>(module, scores);
  try {
    const at::Tensor value = loss->Compute(output, Zeros(data.target_shape, at::kLong));
    if (value.numel() == 1) return loss;
    return BadModule(path, absl::StrCat("loss gives ", absl::StrJoin(value.sizes(), " x "),
                                        " numbers; it must be one, the mean over the batch"));
  } catch (const std::exception& error) {
    return BadModule(path, absl::StrCat("loss fails on the module's output: ", OneLine(error)));
  }
}

}  // namespace

absl::StatusOr<torch::jit::Module> LoadScriptModule(const std::string& path) {
  if (absl::Status status = CheckFile(path); !status.ok()) return status;
  // The profiling executor runs the first steps slowly, and plans anew when shapes change.
  torch::jit::getProfilingMode() = false;
  absl::StatusOr<torch::jit::Module> module = Read(path);
  if (!module.ok()) return module;
  if (absl::Status status = CheckForward(*module, path); !status.ok()) return status;
  TieAgain(&*module);
  for (const auto& item : module->named_parameters()) {
    if (item.value.requires_grad()) return module;
  }
  return BadModule(path,
                   "the module has no parameters to train (torch.jit.freeze makes constants of "
                   "them; requires_grad = false excludes them)");
}

absl::Status SaveScriptModule(const torch::jit::Module& module, const std::string& path) {
  const std::string part = path + ".part";
  try {
    module.save(part);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(path, ": cannot be written: ", OneLine(error)));
  }
  std::error_code error;
  std::filesystem::rename(part, path, error);
  if (error) return absl::InternalError(absl::StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

ScriptBlock::ScriptBlock(torch::jit::Module module) : module_(std::move(module)) {
  const auto add = [this](const std::string& name, const at::Tensor& tensor, bool trained) {
    // torch::nn::Module takes no dots in names; they are a tree of modules here as there.
    torch::nn::Module* owner = this;
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto children = owner->named_children();
      const std::shared_ptr<torch::nn::Module>* child = children.find(parts[i]);
      owner = child != nullptr
                  ? child->get()
                  : owner->register_module(parts[i], std::make_shared<torch::nn::Module>()).get();
    }
    if (trained) {
      owner->register_parameter(parts.back(), tensor);
    } else {
      owner->register_buffer(parts.back(), tensor);
    }
  };
  for (const auto& item : module_.named_parameters()) {
    add(item.name, item.value, item.value.requires_grad());
    if (!item.value.requires_grad()) frozen_.push_back(item.value);
  }
  for (const auto& item : module_.named_buffers()) add(item.name, item.value, false);
}

at::Tensor ScriptBlock::forward(const at::Tensor& input) {
  at::Tensor output = module_.forward({input}).toTensor();
  if (is_training() && !buffers_checked_) {
    const std::string replaced = ReplacedBuffer();
    TORCH_CHECK_VALUE(replaced.empty(), "[model] file: ", ReplacedText(replaced));
    buffers_checked_ = true;
  }
  return output;
}

std::string ScriptBlock::ReplacedBuffer() const {
  std::set<const void*> known;
  for (const at::Tensor& buffer : buffers()) known.insert(buffer.unsafeGetTensorImpl());
  for (const auto& item : module_.named_buffers()) {
    if (known.count(item.value.unsafeGetTensorImpl()) == 0) return item.name;
  }
  return "";
}

void ScriptBlock::train(bool on) {
  torch::nn::Module::train(on);
  module_.train(on);
}

// Plain attributes that are tensors move too; parameters and buffers are the same tensors in both.
void ScriptBlock::to(torch::Device device, bool) {
  module_.to(device);
}

absl::StatusOr<Model> MakeScriptModel(const ModelContext& context) {
  absl::StatusOr<torch::jit::Module> module = LoadScriptModule(context.config.model_file);
  if (!module.ok()) return module.status();
  auto block = std::make_shared<ScriptBlock>(*module);
  absl::StatusOr<at::Tensor> output = TryOutput(block.get(), context);
  if (!output.ok()) return output.status();
  absl::StatusOr<std::shared_ptr<Loss>> loss = TryLoss(*module, *output, context);
  if (!loss.ok()) return loss.status();
  return Model({{"", std::move(block)}}, *std::move(loss));
}

}  // namespace ddprun
