#include "launcher/agent/reserve.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/packet.h"
#include "launcher/agent/worker_spec.h"

namespace ddprun::agent {
namespace {

// Loading takes seconds; one that takes longer is of no use.
constexpr int64_t kReadyNs = 120'000'000'000;
constexpr char kPreloadScript[] = "ddprun-preload.py";

void AddKey(std::string* spec, const std::string& key, const std::string& value) {
  spec->append(key).append("=").append(value).push_back('\0');
}

// What differs between ranks or generations, and is set anew in each worker.
bool IsOfOneWorker(const std::string& name) {
  for (const char* prefix : {"DDPRUN_", "TORCHELASTIC_", "MASTER_", "PADDLE_", "ROLE_", "GROUP_",
                             "TORCH_FR_DUMP", "TORCH_NCCL_DEBUG_INFO"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return name == "RANK" || name == "WORLD_SIZE" || name == "LOCAL_RANK" ||
         name == "LOCAL_WORLD_SIZE";
}

// Read when a library is loaded, not later: workers that differ in one of these load it themselves.
bool IsReadAtLoad(const std::string& name) {
  for (const char* prefix : {"OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "PYTHON"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return false;
}

}  // namespace

std::string MakeReserveSpec(const v1::StartWorkers& order, const NodeFacts& node,
                            const std::string& preload_script) {
  const v1::JobSpec& job = order.spec();
  const auto& modules = job.launching().preload_modules();
  const int words = static_cast<int>(job.launching().interpreter_words());
  if (modules.empty() || words < 1 || words >= job.program_size()) return "";
  std::map<std::string, std::string> shared = WorkerEnvironment(order, node, 0);
  for (uint32_t local_rank = 0; local_rank < order.local_world_size(); ++local_rank) {
    const std::map<std::string, std::string> own = WorkerEnvironment(order, node, local_rank);
    for (auto entry = shared.begin(); entry != shared.end();) {
      const auto found = own.find(entry->first);
      const bool equal = found != own.end() && found->second == entry->second;
      if (!equal && IsReadAtLoad(entry->first)) return "";
      entry = equal && !IsOfOneWorker(entry->first) ? std::next(entry) : shared.erase(entry);
    }
  }
  std::string spec;
  AddKey(&spec, "JOB", order.job_id());
  AddKey(&spec, "NODE", node.node);
  AddKey(&spec, "STANDBY", "1");
  AddKey(&spec, "WORKER", "0");
  for (int i = 0; i < words; ++i) AddKey(&spec, "ARG", job.program(i));
  AddKey(&spec, "ARG", preload_script);
  AddKey(&spec, "ARG", absl::StrCat(words));
  AddKey(&spec, "ARG", absl::StrCat(order.local_world_size()));
  AddKey(&spec, "ARG", absl::StrJoin(modules, ","));
  for (int i = words; i < job.program_size(); ++i) AddKey(&spec, "ARG", job.program(i));
  for (const auto& [name, value] : shared) AddKey(&spec, "ENV", absl::StrCat(name, "=", value));
  AddKey(&spec, "CWD", job.working_dir());
  AddKey(&spec, "LOG", JoinPath(job.run_dir(), "logs/preload.log"));
  return spec;
}

// Empty where nothing can be preloaded.
std::string Reserve::SpecFor(const v1::StartWorkers& order, const NodeFacts& node) const {
  const std::string script = JoinPath(ParentPath(keeper_path_), kPreloadScript);
  std::string spec = MakeReserveSpec(order, node, script);
  return !spec.empty() && PosixFileSystem().FileBytes(script).ok() ? spec : "";
}

void Reserve::Provide(size_t count, const v1::StartWorkers& order, const NodeFacts& node) {
  std::string spec = SpecFor(order, node);
  if (spec != spec_) held_.clear();
  spec_ = std::move(spec);
  while (!spec_.empty() && held_.size() < count) {
    auto keeper = KeeperProcess::Spawn(keeper_path_, spec_);
    if (!keeper.ok()) return;  // the workers are started afresh then
    held_.push_back({*std::move(keeper), false});
  }
}

std::unique_ptr<KeeperProcess> Reserve::Take(const v1::StartWorkers& order, const NodeFacts& node) {
  Pump();
  if (held_.empty() || SpecFor(order, node) != spec_) return nullptr;
  const auto ready =
      std::find_if(held_.begin(), held_.end(), [](const Held& held) { return held.ready; });
  if (ready == held_.end()) return nullptr;
  std::unique_ptr<KeeperProcess> keeper = std::move(ready->keeper);
  held_.erase(ready);
  return keeper;
}

void Reserve::AddPolls(std::vector<pollfd>* polls) const {
  for (const Held& held : held_) polls->push_back({held.keeper->control_fd(), POLLIN, 0});
}

// False: it has ended, or its preloader has.
bool Reserve::Read(Held* held) {
  std::string bytes;
  bool end = false;
  while (held->keeper->Receive(&bytes, &end)) {
    const std::optional<Packet> packet = Packet::Parse(bytes, nullptr);
    if (packet && packet->type() == "Preloaded") held->ready = true;
    if (packet && packet->type() == "PreloadFailed") return false;
  }
  return !end;
}

void Reserve::Pump() {
  std::erase_if(held_, [](Held& held) { return !Read(&held); });
}

// Waits while the reserve gets ready.
class ReserveStep : public PreparationStep {
 public:
  explicit ReserveStep(Reserve* reserve) : reserve_(reserve) {}

  PreparationResult Advance(int64_t now_ns) override {
    using State = PreparationResult::State;
    if (cancelled_) return {State::kFailed, "it was stopped before its workers started"};
    if (deadline_ns_ == 0) deadline_ns_ = now_ns + kReadyNs;
    reserve_->Pump();
    const bool ready = std::any_of(reserve_->held_.begin(), reserve_->held_.end(),
                                   [](const Reserve::Held& held) { return held.ready; });
    if (ready || reserve_->held_.empty()) return {State::kReady, ""};
    if (now_ns < deadline_ns_) return {State::kWorking, ""};
    reserve_->Drop();
    return {State::kReady,
            "ddprun: preloading took too long; the workers load everything themselves"};
  }
  void Cancel() override { cancelled_ = true; }
  void AddPolls(std::vector<pollfd>* polls) const override { reserve_->AddPolls(polls); }
  int64_t NextDeadlineNs() const override { return deadline_ns_; }

 private:
  Reserve* reserve_;
  int64_t deadline_ns_ = 0;
  bool cancelled_ = false;
};

std::unique_ptr<PreparationStep> Reserve::Step() {
  return std::make_unique<ReserveStep>(this);
}

}  // namespace ddprun::agent
