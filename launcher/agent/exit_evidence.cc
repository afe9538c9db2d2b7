#include "launcher/agent/exit_evidence.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/agent/core_dump.h"
#include "launcher/agent/error_file.h"
#include "launcher/agent/exit_hint.h"
#include "launcher/agent/keeper_facts.h"
#include "launcher/agent/worker_spec.h"

namespace ddprun::agent {
namespace {

constexpr int kShellsKill = 128 + SIGKILL;  // a shell whose last command was killed

}  // namespace

bool SaysChildWasKilled(const std::vector<std::string>& lines) {
  return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("is killed by signal: Killed") != std::string::npos ||
           line.find("terminated by signal SIGKILL") != std::string::npos ||
           line.find("died with <Signals.SIGKILL") != std::string::npos;
  });
}

void ExitEvidence::Begin(const v1::StartWorkers& order, uint32_t master_port) {
  order_ = order;
  ports_ = {master_port};
  for (uint32_t i = 0; i < order.local_world_size(); ++i) {
    const uint32_t rank = order.first_rank() + i;
    ports_.push_back(master_port + 1 + rank);  // Paddle's endpoint
    unlink(ErrorFilePath(order, rank).c_str());
  }
  memory_.Begin();
}

v1::ExitHint ExitEvidence::FindHint(const v1::WorkerExited& exited) const {
  // Other signals are not how a program ends that has lost a peer.
  if (exited.signal() != 0 && exited.signal() != SIGABRT) return v1::EXIT_HINT_UNSPECIFIED;
  if (exited.has_error()) {
    // Its own words decide alone, as if they were the end of its log.
    const std::string words =
        exited.error().traceback().empty() ? exited.error().message() : exited.error().traceback();
    return HintOf(words, ports_);
  }
  return HintOf(LogEnd(LogPath(order_, exited.rank()), kHintBytesMax), ports_);
}

void ExitEvidence::FindArtifacts(v1::WorkerExited* exited) const {
  const std::string folder = ParentPath(LogPath(order_, exited->rank()));
  const std::string prefix = absl::StrCat(kFlightRecorderPrefix, exited->rank());
  absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const bool is_its =
        name.starts_with(prefix) && (name.size() == prefix.size() ||
                                     isdigit(static_cast<unsigned char>(name[prefix.size()])) == 0);
    if (is_its && exited->artifacts_size() < static_cast<int>(kArtifactsMax)) {
      exited->add_artifacts(JoinPath(folder, name));
    }
  }
}

std::vector<std::string> ExitEvidence::Explain(const ExitCircumstances& circumstances,
                                               v1::WorkerExited* exited) {
  std::vector<std::string> lines;
  if (exited->exit_code() == 0 && exited->signal() == 0) return lines;
  // Also of those that we have stopped: an error may be older than our order.
  const std::string path = ErrorFilePath(order_, exited->rank());
  std::string problem;
  if (const std::optional<ErrorFile> file = ReadErrorFile(path, &problem)) {
    exited->mutable_error()->set_message(file->content.message);
    exited->mutable_error()->set_traceback(file->content.traceback);
    exited->mutable_error()->set_time_ns(file->time_ns);
  }
  if (!problem.empty()) {
    lines.push_back(absl::StrCat("ddprun: the error file of rank ", exited->rank(), " (", path,
                                 ") is left aside: ", problem));
  }
  FindArtifacts(exited);
  if (EndedByOrder(*exited)) return lines;
  const std::vector<std::string> tail(exited->log_tail().begin(), exited->log_tail().end());
  const bool killed = exited->signal() == SIGKILL;
  if (killed || exited->exit_code() == kShellsKill || SaysChildWasKilled(tail)) {
    std::optional<v1::OutOfMemory> memory = memory_.Explain(exited->pid());
    if (memory && !killed) {
      memory->set_text(absl::StrCat("a process that it had started was ", memory->text()));
    }
    if (memory) *exited->mutable_out_of_memory() = std::move(*memory);
  }
  if (!circumstances.said_failed && !exited->has_out_of_memory()) {
    exited->set_hint(FindHint(*exited));
  }
  if (MakesCore(exited->signal())) {
    exited->set_core_dump(
        DescribeCore(CoreFactsHere(order_.spec().working_dir(), exited->pid(), exited->signal(),
                                   circumstances.core_flag, circumstances.started_ns)));
  }
  return lines;
}

}  // namespace ddprun::agent
