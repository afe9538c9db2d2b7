// JobRecords: what a coordinator keeps of its job, and does beside speaking with agents: the run
// folder with its events, checkpoints, reports and result, the number of the generation, hooks.
//
// Do() carries out one effect of the core (core.h). What takes long (checkpoints, hooks) is done on
// threads of its own, and its end posted as an event. Thread rule: one thread, the server's loop;
// Open before it runs, and the destructor after it has ended.
// Invariant: nobody is told what is not written down: Flush comes before whatever is said.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mailbox.h"
#include "launcher/coordinator/checkpoint_store.h"
#include "launcher/coordinator/core.h"
#include "launcher/coordinator/hooks.h"
#include "launcher/coordinator/run_folder.h"
#include "launcher/coordinator/services.h"
#include "launcher/net/shared_file.h"
#include "launcher/store/store.h"

namespace ddprun::coordinator {

class JobRecords {
 public:
  struct Options {
    std::string version;
    // Resolved facts of this run for job.json (JSON text of an object), merged with the spec.
    std::string job_facts_json;
    bool point_latest = false;  // runs/latest
    std::function<void(Event)> post;
    std::function<void(const Outcome&)> ended;  // all is written, and the last hook has ended
  };
  // `state` is the core's, which the loop changes between calls; `feed` gets each event's line.
  JobRecords(const State& state, EventFeed& feed, Options options);
  ~JobRecords();

  // Takes the run folder and writes job.json; refused where it holds a job that is not resumed.
  absl::Status Open(const v1::JobSpec& spec);
  Past ReadPast() const { return folder_->ReadPast(); }
  const net::SharedFile& shared_file() const { return shared_file_; }

  void Do(const RecordEvent& e);
  void Do(const PersistGeneration& e);
  void Do(const ChooseResume& e);
  void Do(const CommitCheckpoint& e);
  void Do(const DropStaging& e);
  void Do(const WriteHangReport& e);
  void Do(const RunHook& e);
  // REQUIRES: Flush.
  void Do(const FinishJob& e);
  // What RecordEvent has brought since the last time goes to events.jsonl and the feed.
  void Flush();
  void OnHookEnded(const HookEnded& e);

 private:
  HookRunner& Hooks();
  Hook MakeHook(const std::string& name, const std::string& command) const;
  void DoLater(std::function<void()> task);
  void RunTasks();

  const State& state_;
  EventFeed& feed_;
  const Options options_;
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<Store> store_;
  uint64_t generation_revision_ = 0;
  net::SharedFile shared_file_;
  std::vector<std::string> lines_;  // until Flush
  bool event_error_told_ = false;
  Outcome outcome_;
  std::unique_ptr<CheckpointStore> checkpoints_;  // of the I/O thread
  Mailbox<std::function<void()>> tasks_;
  std::thread io_thread_;              // from Open on
  std::unique_ptr<HookRunner> hooks_;  // none before the first hook
};

}  // namespace ddprun::coordinator
