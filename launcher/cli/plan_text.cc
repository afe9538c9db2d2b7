#include "launcher/cli/plan_text.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/format.h"

namespace ddprun::cli {
namespace {

// Numbers and texts of the answer; 0 and "" for what is not there.
class Answer {
 public:
  explicit Answer(const Json& json) : json_(json) {}
  uint64_t Number(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
  }
  double Real(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_number() ? found->get<double>() : 0;
  }
  std::string Text(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_string() ? ForPeople(found->get<std::string>()) : "";
  }
  Answer In(const char* key) const {
    static const Json* const nothing = new Json(Json::object());
    const auto found = json_.find(key);
    return Answer(found != json_.end() && found->is_object() ? *found : *nothing);
  }
  const Json& List(const char* key) const {
    static const Json* const nothing = new Json(Json::array());
    const auto found = json_.find(key);
    return found != json_.end() && found->is_array() ? *found : *nothing;
  }

 private:
  const Json& json_;
};

// 1234567 → "1,234,567"
std::string Grouped(uint64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string Row(const std::string& name, const std::string& value) {
  return absl::StrFormat("  %-18s %s\n", name, value);
}

std::string Run(const Answer& plan) {
  const std::string samples =
      absl::StrCat(Grouped(plan.Number("samples_per_step")), " = batch ", plan.Number("batch_size"),
                   " x accumulation ", plan.Number("accumulation_steps"), " x ",
                   plan.Number("world_size"), plan.Number("world_size") == 1 ? " rank" : " ranks");
  std::string text =
      Row("parameters", absl::StrCat(Grouped(plan.Number("parameters")), ", and ",
                                     Grouped(plan.Number("buffers")), " numbers in buffers")) +
      Row("samples", absl::StrCat(Grouped(plan.Number("samples")), " in the training data")) +
      Row("samples per step", samples) +
      Row("steps", absl::StrCat(Grouped(plan.Number("steps_per_epoch")), " an epoch, ",
                                Grouped(plan.Number("steps")), " in all"));
  const Answer rate = plan.In("learning_rate");
  std::string rates = absl::StrFormat("%g at the start", rate.Real("start"));
  const uint64_t warmup = rate.Number("warmup_steps");
  if (warmup > 0) {
    absl::StrAppendFormat(&rates, ", %g after the warm-up of %d steps", rate.Real("peak"), warmup);
  }
  absl::StrAppendFormat(&rates, ", %g in the last step", rate.Real("end"));
  return text + Row("learning rate", rates);
}

std::string Memory(const Answer& memory) {
  constexpr std::pair<const char*, const char*> kKinds[] = {
      {"weights", "weights"},     {"buffers", "buffers"}, {"gradients", "gradients"},
      {"optimizer", "optimizer"}, {"average", "average"}, {"activations", "activations"}};
  std::string text = "\nmemory of a rank\n";
  for (const auto& [key, name] : kKinds) {
    if (memory.Number(key) > 0) text += Row(name, SizeText(memory.Number(key)));
  }
  return text + Row("together", SizeText(memory.Number("on_device"))) +
         Row("loader", absl::StrCat(SizeText(memory.Number("loader")),
                                    " more, on the host: batches that are prepared ahead")) +
         Row("checkpoint copy", absl::StrCat(SizeText(memory.Number("checkpoint_copy")),
                                             " more, on the host, rank 0 alone"));
}

std::string Communication(const Answer& plan) {
  const Answer bytes = plan.In("communication");
  if (plan.Number("world_size") < 2) return "\ncommunication: none, with one rank\n";
  return absl::StrCat(
      "\ncommunication of a step\n", Row("averaged", SizeText(bytes.Number("reduced_bytes"))),
      Row("sent by each rank", absl::StrCat(SizeText(bytes.Number("sent_bytes_per_rank")),
                                            ": 2 (n - 1) / n of it, in a ring of n ranks")));
}

std::string Savings(const Answer& plan) {
  std::string text;
  for (const Json& entry : plan.List("options")) {
    const Answer option(entry);
    absl::StrAppend(&text, "  ", option.Text("change"), "\n    activations ",
                    SizeText(option.Number("activations")), ", together ",
                    SizeText(option.Number("on_device")), "\n");
  }
  return text.empty() ? "" : "\nwhat would take less memory\n" + text;
}

std::string Assumptions(const Answer& plan) {
  std::string text;
  for (const Json& entry : plan.List("assumptions")) {
    if (entry.is_string())
      absl::StrAppend(&text, "  * ", ForPeople(entry.get<std::string>()), "\n");
  }
  return text.empty() ? "" : "\nwhat these figures assume\n" + text;
}

}  // namespace

absl::StatusOr<std::string> PlanText(const std::string& json, const std::string& config_path) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::InternalError("ddp-worker --plan answered no JSON object");
  const Answer plan(parsed);
  return absl::StrCat(config_path, ": model ", plan.Text("model"), "\n", Run(plan),
                      Memory(plan.In("memory")), Communication(plan), Savings(plan),
                      Assumptions(plan));
}

}  // namespace ddprun::cli
