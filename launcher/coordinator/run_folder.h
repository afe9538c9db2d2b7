// The run folder of one job on disk (DESIGN 4.2): job.json, events.jsonl, result.json, and the lock
// that keeps a second launcher out.
//
// Threads: one thread at a time. events.jsonl gets whole lines in one write(2), so a crash leaves
// whole lines except perhaps the last; a torn last line is ended with a line feed when the folder
// is opened again, or before the next line.
//
// Where the disk is full (worker logs fill it), what is kept free serves events.jsonl and
// result.json: a file of 256 KiB that is allocated at the start and never written. One half goes
// when events.jsonl finds no room, the rest at the job's end, when nothing else writes there.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/coordinator/core.h"

namespace ddprun::coordinator {

class RunFolder {
 public:
  // Makes the folder (or opens the one of the same job, to resume) and takes its lock.
  // FAILED_PRECONDITION: in use by a live ddprun.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Open(const std::string& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  // What earlier runs left in events.jsonl and result.json.
  Past ReadPast() const;
  absl::Status WriteJob(const nlohmann::ordered_json& job);
  // The event's line, without a line feed, with `t` (seconds since the epoch) in front.
  static std::string EventLine(const nlohmann::ordered_json& event, double t);
  // Appends whole lines, which have no line feed, to events.jsonl.
  absl::Status AppendEvents(const std::vector<std::string>& lines);
  // Keeps room free for the end; no error where there is none now.
  void MakeReserve();
  // At the job's end: before the last events and result.json.
  void ReleaseReserve();
  // True once: events.jsonl goes on only since the first half was released.
  bool TookReserve() { return std::exchange(took_reserve_, false); }
  // A file of its own, in a folder that is made where it is missing. Any thread.
  static absl::Status WriteReport(const std::string& path, const nlohmann::ordered_json& report);
  absl::Status WriteResult(const nlohmann::ordered_json& result);
  // Points <parent>/latest to this folder.
  void PointLatestHere();

 private:
  RunFolder(std::string path, int lock_fd, int events_fd);
  bool ReleaseHalf();
  std::string path_;
  int lock_fd_;
  int events_fd_;
  bool torn_ = false;  // the newest line of events.jsonl is not whole
  bool reserve_whole_ = false;
  bool took_reserve_ = false;
};

}  // namespace ddprun::coordinator
