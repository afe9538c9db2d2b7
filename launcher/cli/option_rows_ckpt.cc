// The options of `ddprun ckpt`.
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/cli/option_rows.h"
#include "launcher/cli/values.h"

namespace ddprun::cli {
namespace {

constexpr uint32_t kShardsMax = 99'999;  // five digits in the names of the files

absl::Status SetDtype(OptionText text, Options* o) {
  for (const auto& [typed, dtype] : {std::pair("fp32", "F32"), {"bf16", "BF16"}, {"fp16", "F16"}}) {
    if (text == typed) return KeepText(dtype, &o->ckpt.dtype);
  }
  return absl::InvalidArgumentError("give fp32, bf16 or fp16");
}

absl::Status SetFormat(OptionText text, Options* o) {
  if (text != "safetensors" && text != "torchscript") {
    return absl::InvalidArgumentError("give safetensors or torchscript");
  }
  o->ckpt.torchscript = text == "torchscript";
  return absl::OkStatus();
}

absl::Status AddRename(OptionText text, Options* o) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        "give FROM=TO, a tensor's name or (with a dot at its end) the beginning of names");
  }
  const std::string from = text.substr(0, equals), to = text.substr(equals + 1);
  if (to.empty() && from.back() != '.') {
    return absl::InvalidArgumentError("a tensor needs a name; give FROM=TO");
  }
  o->ckpt.renames.emplace_back(from, to);
  return absl::OkStatus();
}

// The module takes the checkpoint's tensors as they are.
absl::Status CheckTorchScript(const CkptOptions& c) {
  const char* option = c.ema                        ? "--ema"
                       : !c.dtype.empty()           ? "--dtype"
                       : !c.renames.empty()         ? "--rename"
                       : !c.stripped_prefix.empty() ? "--prefix-strip"
                       : c.shards != 1              ? "--shards"
                                                    : nullptr;
  if (option == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      option,
      ": not with --format torchscript, which puts the trained tensors into the module as "
      "they are"));
}

}  // namespace

OptionRowList CkptRows() {
  constexpr unsigned kWriters = kForCkptExport | kForCkptConvert;
  return {
      {"--run-dir", "DIR", kForCkpt & ~(kForCkptConvert | kForCkptList | kForCkptPrune), kGroupCkpt,
       "The run whose checkpoints are meant by a step. Default runs/latest",
       [](OptionText v, Options* o) { return KeepText(v, &o->run_dir); }},
      {"--json", "", kForCkptList | kForCkptShow | kForCkptVerify, kGroupCkpt, "Prints JSON",
       [](OptionText, Options* o) {
         o->json = true;
         return absl::OkStatus();
       }},
      {"-o,--output", "FILE", kWriters | kForTokens, kGroupCkpt,
       "Where to write: the safetensors file (ckpt export, convert) or the module; the file of "
       "tokens, or the "
       "folder for both (tokens)",
       [](OptionText v, Options* o) { return KeepText(v, &o->output); }},
      {"--force", "", kWriters | kForTokens, kGroupCkpt, "Replaces FILE where there is one",
       [](OptionText, Options* o) {
         o->force = true;
         return absl::OkStatus();
       }},
      {"--format", "safetensors|torchscript", kForCkptExport, kGroupCkpt,
       "export: the tensors, or the module of model torchscript with its trained weights, which "
       "torch.jit.load opens. Default safetensors",
       [](OptionText v, Options* o) { return SetFormat(v, o); }},
      {"--module-file", "FILE", kForCkptExport, kGroupCkpt,
       "export --format torchscript: the module's file, where it is no more at [model] file",
       [](OptionText v, Options* o) { return KeepText(v, &o->ckpt.module_file); }},
      {"--ema", "", kForCkptExport, kGroupCkpt,
       "export: the averaged weights (train.ema_decay) instead of the trained ones",
       [](OptionText, Options* o) {
         o->ckpt.ema = true;
         return absl::OkStatus();
       }},
      {"--dtype", "fp32|bf16|fp16", kWriters, kGroupCkpt,
       "export, convert: rounds floating-point tensors to this type. Default: as they are",
       [](OptionText v, Options* o) { return SetDtype(v, o); }},
      {"--rename", "FROM=TO", kWriters, kGroupCkpt,
       "export, convert: a tensor's new name; FROM with a dot at its end: of all that begin so. "
       "May repeat",
       [](OptionText v, Options* o) { return AddRename(v, o); }, "", true},
      {"--prefix-strip", "PREFIX", kWriters, kGroupCkpt,
       "export, convert: takes PREFIX away where names begin with it, for example module.",
       [](OptionText v, Options* o) { return KeepText(v, &o->ckpt.stripped_prefix); }},
      {"--shards", "N", kWriters, kGroupCkpt,
       "export, convert: N files FILE-<i>-of-<N>.safetensors of about equal size, and their index. "
       "Default 1",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 1, kShardsMax), &o->ckpt.shards);
       }},
      {"--keep", "N", kForCkptPrune, kGroupCkpt,
       "prune: the newest N whole checkpoints stay, and the best one",
       [](OptionText v, Options* o) {
         return StoreOption(ParseCount(v, 1, std::numeric_limits<uint32_t>::max()), &o->ckpt.keep);
       }},
      {"--dry-run", "", kForCkptPrune, kGroupCkpt, "prune: says what would be removed",
       [](OptionText, Options* o) {
         o->dry_run = true;
         return absl::OkStatus();
       }},
  };
}

absl::Status CheckCkpt(const Options& o) {
  const CkptOptions& c = o.ckpt;
  const auto bad = [](absl::string_view text) { return absl::InvalidArgumentError(text); };
  const bool writes = c.action == CkptAction::kExport || c.action == CkptAction::kConvert;
  if (!c.module_file.empty() && !c.torchscript) {
    return bad("--module-file " + c.module_file + ": only with --format torchscript");
  }
  if (c.action == CkptAction::kConvert && c.words.empty()) {
    return bad("ckpt convert: convert what? ddprun ckpt convert IN -o OUT");
  }
  if (c.action != CkptAction::kVerify && c.words.size() > 1) {
    return bad(c.words[1] + ": one at a time, and " + c.words[0] + " is given");
  }
  if (writes && o.output.empty()) {
    return bad(c.torchscript ? "--output: missing; where to write: -o FILE.pt"
                             : "--output: missing; where to write: -o FILE.safetensors");
  }
  if (c.torchscript) return CheckTorchScript(c);
  if (writes && !absl::EndsWith(o.output, ".safetensors")) {
    return bad("--output " + o.output + ": the file's name must end in .safetensors");
  }
  if (c.action == CkptAction::kPrune && !c.keep) {
    return bad("--keep: missing; how many checkpoints stay? ddprun ckpt prune --keep 3");
  }
  return absl::OkStatus();
}

}  // namespace ddprun::cli
