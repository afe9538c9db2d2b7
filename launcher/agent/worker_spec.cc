#include "launcher/agent/worker_spec.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ddprun::agent {
namespace {

void Add(std::string& spec, const std::string& key, const std::string& value) {
  spec.append(key).append("=").append(value).push_back('\0');
}

bool IsIdentifier(char c) {
  return absl::ascii_isalnum(c) || c == '_';
}

// The name at text[at…] that a $ may stand before; empty when there is none.
std::string NameAt(const std::string& text, size_t at) {
  if (at >= text.size() || absl::ascii_isdigit(text[at])) return "";
  size_t end = at;
  while (end < text.size() && IsIdentifier(text[end])) ++end;
  return text.substr(at, end - at);
}

}  // namespace

std::string SubstituteLocalRank(const std::string& argument, uint32_t local_rank) {
  constexpr char kName[] = "local_rank";
  std::string text;
  size_t i = 0;
  while (i < argument.size()) {
    if (argument.compare(i, 2, "$$") == 0) {
      text += '$';
      i += 2;
    } else if (argument.compare(i, sizeof kName + 2, "${local_rank}") == 0) {
      absl::StrAppend(&text, local_rank);
      i += sizeof kName + 2;
    } else if (argument[i] == '$' && NameAt(argument, i + 1) == kName) {
      absl::StrAppend(&text, local_rank);
      i += sizeof kName;
    } else {
      text += argument[i++];
    }
  }
  return text;
}

std::string LogPath(const v1::StartWorkers& order, uint32_t rank) {
  return absl::StrCat(order.spec().run_dir(), "/logs/g", order.generation(), "/rank", rank, ".log");
}

bool ShownOnConsole(const v1::JobSpec& spec, uint32_t rank, uint32_t local_rank) {
  const auto holds = [](const auto& list, uint32_t number) {
    return std::find(list.begin(), list.end(), number) != list.end();
  };
  if (holds(spec.logging().quiet_local_ranks(), local_rank)) return false;
  return spec.log_ranks().empty() || holds(spec.log_ranks(), rank);
}

std::string MakeKeeperSpec(const v1::StartWorkers& order, const NodeFacts& node,
                           int64_t lease_until_ns) {
  const v1::JobSpec& job = order.spec();
  std::string spec;
  Add(spec, "JOB", order.job_id());
  Add(spec, "GENERATION", absl::StrCat(order.generation()));
  Add(spec, "NODE", node.node);
  Add(spec, "GRACE_MS", absl::StrCat(static_cast<int64_t>(job.grace_seconds() * 1000)));
  Add(spec, "LEASE_UNTIL_NS", absl::StrCat(lease_until_ns));
  Add(spec, "LOG_BYTES_MAX", absl::StrCat(job.logging().file_bytes_max()));
  Add(spec, "LOG_FILES_KEPT", absl::StrCat(job.logging().rotated_files_kept()));
  Add(spec, "LEASE_CLOCK", node.lease_monotonic ? "monotonic" : "boot");
  Add(spec, "HANG_MS",
      absl::StrCat(static_cast<int64_t>(job.supervision().hang_timeout_seconds() * 1000)));
  Add(spec, "FOREGROUND", "1");
  for (uint32_t local_rank = 0; local_rank < order.local_world_size(); ++local_rank) {
    const uint32_t rank = order.first_rank() + local_rank;
    Add(spec, "WORKER", absl::StrCat(rank));
    if (!job.train_config_json().empty()) {
      Add(spec, "ARG", node.worker_path);
    } else {
      for (int i = 0; i < job.program_size(); ++i) {
        // The first is what is executed, which torchrun leaves as it is.
        const bool substitute = i > 0 && job.launching().substitute_local_rank();
        Add(spec, "ARG",
            substitute ? SubstituteLocalRank(job.program(i), local_rank) : job.program(i));
      }
    }
    for (const auto& [name, value] : WorkerEnvironment(order, node, local_rank)) {
      Add(spec, "ENV", absl::StrCat(name, "=", value));
    }
    if (local_rank < node.places.size() && !node.places[local_rank].cpus.empty()) {
      Add(spec, "CPUS", placement::FormatCpus(node.places[local_rank].cpus));
    }
    Add(spec, "CWD", job.working_dir());
    Add(spec, "LOG", LogPath(order, rank));
    Add(spec, "CONSOLE", ShownOnConsole(job, rank, local_rank) ? "1" : "0");
  }
  return spec;
}

}  // namespace ddprun::agent
