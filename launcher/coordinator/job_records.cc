#include "launcher/coordinator/job_records.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "google/protobuf/util/json_util.h"
#include "launcher/coordinator/hang_report.h"
#include "launcher/coordinator/report.h"

namespace ddprun::coordinator {
namespace {

using Json = nlohmann::ordered_json;

double RealSeconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(since).count()) /
         1e6;
}

Json JobJson(const v1::JobSpec& spec, const std::string& version, const std::string& facts) {
  std::string text;
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  // The environment may hold secrets of the user; it is not written down.
  v1::JobSpec shown = spec;
  shown.clear_environment();
  shown.clear_train_config_json();
  if (!google::protobuf::util::MessageToJsonString(shown, &text, print).ok()) text = "{}";
  Json job = Json::parse(text, nullptr, false);
  job["ddprun_version"] = version;
  if (!spec.train_config_json().empty()) {
    job["train"] = Json::parse(spec.train_config_json(), nullptr, false);
  }
  Json more = Json::parse(facts, nullptr, false);
  if (more.is_object()) job.update(more);
  return job;
}

void Complain(const absl::Status& status, const char* what_then = "") {
  if (status.ok()) return;
  std::fprintf(stderr, "ddprun: %s%s\n", std::string(status.message()).c_str(), what_then);
}

}  // namespace

JobRecords::JobRecords(const State& state, EventFeed& feed, Options options)
    : state_(state), feed_(feed), options_(std::move(options)) {}

JobRecords::~JobRecords() {
  tasks_.Close();
  if (io_thread_.joinable()) io_thread_.join();
}

absl::Status JobRecords::Open(const v1::JobSpec& spec) {
  absl::StatusOr<std::unique_ptr<RunFolder>> folder = RunFolder::Open(spec.run_dir());
  if (!folder.ok()) return folder.status();
  folder_ = std::move(*folder);
  // Looked at again under the lock: another job may have come and gone since the command line
  // looked.
  if (!spec.resume() && PosixFileSystem().FileBytes(JoinPath(spec.run_dir(), "job.json")).ok()) {
    return absl::FailedPreconditionError(absl::StrCat("run folder ", spec.run_dir(),
                                                      " holds a job already: go on with it by "
                                                      "--resume, or choose another --run-dir"));
  }
  absl::Status status = folder_->WriteJob(JobJson(spec, options_.version, options_.job_facts_json));
  if (!status.ok()) return status;
  folder_->MakeReserve();
  if (options_.point_latest) folder_->PointLatestHere();
  checkpoints_ = std::make_unique<CheckpointStore>(PosixFileSystem(), spec.run_dir(), spec.job_id(),
                                                   spec.checkpoints_kept());
  store_ = MakeMemoryStore();
  if (spec.needs_shared_run_dir() && spec.nodes_max() > 1) {
    absl::StatusOr<net::SharedFile> shared = net::WriteSharedFile(spec.run_dir());
    if (!shared.ok()) return shared.status();
    shared_file_ = *std::move(shared);
  }
  io_thread_ = std::thread([this] { RunTasks(); });
  return absl::OkStatus();
}

void JobRecords::Do(const RecordEvent& e) {
  lines_.push_back(RunFolder::EventLine(e.event, RealSeconds()));
}

void JobRecords::Flush() {
  if (lines_.empty()) return;
  if (state_.phase == Phase::kFinished) folder_->ReleaseReserve();
  absl::Status status = folder_->AppendEvents(lines_);
  if (!status.ok() && !std::exchange(event_error_told_, true)) {
    Complain(status, "; the job goes on, later events may be missing there");
  }
  if (folder_->TookReserve()) {
    std::fprintf(stderr,
                 "ddprun: the disk of %s is full: events.jsonl goes on in the room that was kept "
                 "free for it; the job goes on, its logs may be incomplete\n",
                 folder_->path().c_str());
  }
  feed_.Append(std::exchange(lines_, {}));
}

void JobRecords::Do(const PersistGeneration& e) {
  absl::StatusOr<uint64_t> revision =
      store_->CompareAndSet("generation", generation_revision_, absl::StrCat(e.generation));
  // Another coordinator of this job has taken over: nothing more may be started from here.
  if (!revision.ok()) std::abort();
  generation_revision_ = *revision;
}

void JobRecords::Do(const ChooseResume& e) {
  DoLater([this, e] { options_.post(checkpoints_->ChooseResume(e.generation)); });
}

void JobRecords::Do(const CommitCheckpoint& e) {
  DoLater([this, e] {
    absl::StatusOr<std::string> path = checkpoints_->Commit(e);
    options_.post(CheckpointStored{e.generation, e.step, path.ok(), path.ok() ? *path : "",
                                   path.ok() ? "" : std::string(path.status().message())});
  });
}

void JobRecords::Do(const DropStaging& e) {
  DoLater([this, e] { checkpoints_->DropStaging(e.generation, e.step); });
}

void JobRecords::Do(const WriteHangReport& e) {
  const std::string path = JoinPath(folder_->path(), e.name);
  absl::Status status = RunFolder::WriteReport(path + ".json", e.report);
  if (status.ok()) status = ReplaceFile(PosixFileSystem(), path + ".txt", HangReportText(e.report));
  Complain(status);
}

void JobRecords::Do(const RunHook& e) {
  Hook hook = MakeHook("on_failure", state_.spec.supervision().on_failure());
  hook.report_path =
      JoinPath(folder_->path(), absl::StrCat("reports/g", e.failure.generation, ".json"));
  hook.report = MakeFailureReport(state_, e);
  Hooks().Run(std::move(hook));
}

void JobRecords::Do(const FinishJob& e) {
  folder_->ReleaseReserve();
  if (!shared_file_.path.empty()) unlink(shared_file_.path.c_str());
  Complain(folder_->WriteResult(MakeResult(state_, e.outcome)));
  outcome_ = e.outcome;
  const std::string& command = state_.spec.supervision().on_finish();
  if (command.empty() && hooks_ == nullptr) return options_.ended(outcome_);
  // The end waits for all hooks; the last one, which may have no command, is the sign.
  Hook hook = MakeHook("on_finish", command);
  hook.report_path = JoinPath(folder_->path(), "result.json");
  Hooks().RunLast(std::move(hook));
}

void JobRecords::OnHookEnded(const HookEnded& e) {
  const bool last = e.hook == "on_finish";
  if (!e.ok) {
    std::fprintf(stderr, "ddprun: the --%s command failed: %s; the job is not affected\n",
                 last ? "on-finish" : "on-failure", e.reason.c_str());
  }
  if (last) options_.ended(outcome_);
}

HookRunner& JobRecords::Hooks() {
  if (hooks_ == nullptr) {
    hooks_ = std::make_unique<HookRunner>([this](HookEnded e) { options_.post(std::move(e)); });
  }
  return *hooks_;
}

Hook JobRecords::MakeHook(const std::string& name, const std::string& command) const {
  const std::string& run_dir = folder_->path();
  Hook hook{.name = name, .command = command, .generation = state_.generation.number};
  hook.log_path = JoinPath(run_dir, "logs/hooks.log");
  hook.environment = {{"DDPRUN_JOB_ID", state_.spec.job_id()}, {"DDPRUN_RUN_DIR", run_dir}};
  return hook;
}

void JobRecords::DoLater(std::function<void()> task) {
  tasks_.Post(std::move(task));
}

void JobRecords::RunTasks() {
  while (std::optional<std::function<void()>> task = tasks_.Take(std::nullopt)) (*task)();
}

}  // namespace ddprun::coordinator
