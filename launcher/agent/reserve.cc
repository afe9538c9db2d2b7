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

void Reserve::Provide(const v1::StartWorkers& order, const NodeFacts& node) {
  const std::string script = JoinPath(ParentPath(keeper_path_), kPreloadScript);
  std::string spec = MakeReserveSpec(order, node, script);
  if (keeper_ != nullptr && spec == spec_) return;
  keeper_.reset();
  ready_ = false;
  spec_ = std::move(spec);
  if (spec_.empty() || !PosixFileSystem().FileBytes(script).ok()) return;
  auto keeper = KeeperProcess::Spawn(keeper_path_, spec_);
  if (keeper.ok()) keeper_ = *std::move(keeper);  // else the workers are started afresh
}

std::unique_ptr<KeeperProcess> Reserve::Take(const v1::StartWorkers& order, const NodeFacts& node) {
  Pump();
  const std::string script = JoinPath(ParentPath(keeper_path_), kPreloadScript);
  if (!ready_ || MakeReserveSpec(order, node, script) != spec_) keeper_.reset();
  ready_ = false;
  return std::move(keeper_);
}

void Reserve::AddPolls(std::vector<pollfd>* polls) const {
  if (keeper_ != nullptr) polls->push_back({keeper_->control_fd(), POLLIN, 0});
}

void Reserve::Pump() {
  std::string bytes;
  bool end = false;
  while (keeper_ != nullptr && keeper_->Receive(&bytes, &end)) {
    const std::optional<Packet> packet = Packet::Parse(bytes, nullptr);
    if (packet && packet->type() == "Preloaded") ready_ = true;
    if (packet && packet->type() == "PreloadFailed") end = true;
    if (end) break;
  }
  if (!end) return;
  keeper_.reset();
  ready_ = false;
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
    if (reserve_->keeper_ == nullptr || reserve_->ready_) return {State::kReady, ""};
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
