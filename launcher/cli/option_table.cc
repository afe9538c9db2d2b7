#include "launcher/cli/option_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/edit_distance.h"
#include "launcher/cli/option_rows.h"

namespace ddprun::cli {
namespace {

// What people type who come from elsewhere, and a word of ours for it.
constexpr std::pair<const char*, const char*> kForeignNames[] = {
    {"-n", "--nproc"},
    {"-np", "--nproc"},
    {"--np", "--nproc"},
    {"--gpu-ids", "--gpus"},
    {"--devices", "--gpus"},
    {"--output-dir", "--run-dir"},
    {"--max-restart", "--max-restarts"},
    {"--num-processes", "--nproc"},
    {"--num-machines", "--nnodes"},
    {"--machine-rank", "--node-rank"},
    {"--override", "--set"},
    {"--continue", "--resume"},
    {"--max-retries", "--max-restarts"},
    {"--main-process-port", "--master-port"},
    {"--main-process-ip", "--master-addr"},
    {"--timeout", "--time-limit"},
    {"--nodes", "--nnodes"},
    {"-N", "--nnodes"},
    {"-H", "--hosts"},
    {"--host", "--hosts"},
    {"--hostfile", "--hosts"},
    {"--interface", "--iface"},
    {"--node-ip-address", "--advertise-addr"},
    {"--bind", "--listen"},
};

constexpr size_t kNameBytesMax = 64;  // the distance is quadratic

}  // namespace

const std::vector<OptionRow>& OptionRows() {
  static const std::vector<OptionRow>* const rows = [] {
    auto* all = new std::vector<OptionRow>(WhatRows());
    for (const auto& part : {WhereRows(), FailureRows(), WatchRows(), NodeRows(), ClusterRows(),
                             SecurityRows(), TorchrunRows(), RendezvousRows(), PythonOnlyRows(),
                             LogsRows(), DoctorRows(), CkptRows(), TokensRows(), OtherRows()}) {
      all->insert(all->end(), part.begin(), part.end());
    }
    return all;
  }();
  return *rows;
}

std::string_view FirstName(const OptionRow& row) {
  const std::string_view names = row.names;
  return names.substr(0, names.find(','));
}

std::string_view LongName(const OptionRow& row) {
  for (absl::string_view own : absl::StrSplit(row.names, ',')) {
    if (absl::StartsWith(own, "--")) return {own.data(), own.size()};
  }
  return FirstName(row);
}

const OptionRow* FindOption(std::string_view name, unsigned command) {
  for (const OptionRow& row : OptionRows()) {
    if ((row.commands & command) == 0) continue;
    for (absl::string_view own : absl::StrSplit(row.names, ',')) {
      if (own == absl::string_view(name.data(), name.size())) return &row;
    }
  }
  return nullptr;
}

std::string SuggestOption(std::string_view name, unsigned command) {
  for (const auto& [foreign, ours] : kForeignNames) {
    if (name == foreign && FindOption(ours, command) != nullptr) {
      return absl::StrCat("; did you mean ", ours, "?");
    }
  }
  if (name.size() > kNameBytesMax || name.size() < 3) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const OptionRow& row : OptionRows()) {
    if ((row.commands & command) == 0) continue;
    for (absl::string_view own : absl::StrSplit(row.names, ',')) {
      // What is only a part of a name (--nodes for --nnodes, --restarts for --max-restarts) is
      // near.
      // So is what has been shortened, as torchrun allows it: --nproc_per.
      const std::string_view whole(own.data(), own.size());
      const bool shortened = name.size() > 4 && whole.substr(0, name.size()) == name;
      const size_t distance = shortened ? 1 : EditDistance(name, whole);
      if (distance < best_distance) {
        best_distance = distance;
        best = std::string(own);
      }
    }
  }
  return best.empty() ? "" : absl::StrCat("; did you mean ", best, "?");
}

}  // namespace ddprun::cli
