// The groups of the option table, and what their rows share. Only option_table.cc puts them
// together; everybody else asks the table. Pure.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/cli/option_table.h"

namespace ddprun::cli {

inline constexpr unsigned kJobCommands = kForRun | kForCoordinator;
inline constexpr unsigned kAllCommands = kForRun | kForCoordinator | kForAgent;
inline constexpr unsigned kEveryCommand =
    kAllCommands | kForLogs | kForDoctor | kForCkpt | kForPlan | kForTokens;

// Headings of the help, in its order.
inline constexpr char kGroupWhat[] = "What to run";
inline constexpr char kGroupWhere[] = "Where results and logs go";
inline constexpr char kGroupFailures[] = "Failures and stops";
inline constexpr char kGroupWatch[] = "Watching, commands of yours, devices";
inline constexpr char kGroupNodes[] = "Nodes";
inline constexpr char kGroupSecurity[] =
    "Security (the job's secret is in DDPRUN_SECRET or the file DDPRUN_SECRET_FILE)";
inline constexpr char kGroupTorchrun[] =
    "As torchrun has them (PET_<NAME> variables stand for all of torchrun's options)";
inline constexpr char kGroupLogs[] = "What to show";
inline constexpr char kGroupDoctor[] = "What to look at";
inline constexpr char kGroupCkpt[] = "What to show or write";
inline constexpr char kGroupTokens[] = "Tokens";
inline constexpr char kGroupOther[] = "Other";

OptionRowList WhatRows();
OptionRowList WhereRows();
OptionRowList FailureRows();
OptionRowList WatchRows();
OptionRowList NodeRows();
OptionRowList ClusterRows();
OptionRowList SecurityRows();
OptionRowList DoctorRows();
OptionRowList TorchrunRows();
OptionRowList PythonOnlyRows();
OptionRowList RendezvousRows();
OptionRowList LogsRows();
OptionRowList CkptRows();
OptionRowList TokensRows();
OptionRowList OtherRows();

// Stores what a value parser gave.
template <typename T, typename Field>
absl::Status StoreOption(absl::StatusOr<T> value, Field* field) {
  if (!value.ok()) return value.status();
  *field = *std::move(value);
  return absl::OkStatus();
}

using OptionText = const std::string&;

// Takes a value as it stands.
template <typename Field>
absl::Status KeepText(OptionText text, Field* field) {
  *field = text;
  return absl::OkStatus();
}

}  // namespace ddprun::cli
