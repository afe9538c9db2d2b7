// The parts of a JobSpec that do not depend on what is run: sizes, device, policies, environment.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "launcher/cli/preflight.h"

namespace ddprun::cli {

// Fills in plan->spec, world_size, notes and variables. What was not given is taken from `previous`
// (may be null), else from the defaults of docs/cli.md.
absl::Status FillSpec(const Options& options, const Surroundings& here, const v1::JobSpec* previous,
                      RunPlan* plan);

// Parts of it (spec_policies.cc). Sizes and environment of the spec must be known for the last two.
void FillPolicies(const Options& options, const v1::JobSpec* previous, v1::JobSpec* spec);
void FillSupervision(const Options& options, const v1::JobSpec* previous, v1::JobSpec* spec);
// `own_processes`: workers of this node, where each node has its own number.
absl::Status FillLogging(const Options& options, const v1::JobSpec* previous,
                         uint32_t own_processes, v1::JobSpec* spec);
absl::Status FillLaunching(const Options& options, const Surroundings& here,
                           const v1::JobSpec* previous, RunPlan* plan);

bool IsUtf8(const std::string& text);
// Printable: other bytes as \xNN.
std::string ShownBytes(const std::string& text);
// Where a symbolic link leads, made absolute.
absl::StatusOr<std::string> ResolveLink(const std::string& path);

}  // namespace ddprun::cli
