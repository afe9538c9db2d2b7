// What one Step of the agent's core works with, and what its parts share. Internal to the core.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/agent/core.h"

namespace ddprun::agent {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int kExitCoordinatorLost = 1;
constexpr int kExitRefused = 2;
constexpr int kExitNoCoordinator = 3;

struct Turn {
  State& state;
  int64_t now_ns;
  std::vector<Effect>& out;

  // Numbered, so that it arrives once and in order; kept while there is no stream.
  void Fact(v1::AgentMessage message) {
    v1::AgentMessage numbered = state.link.Send(std::move(message));
    if (state.attached) out.push_back(SendUp{std::move(numbered)});
  }
  void Finish(End end) {
    state.ended = true;
    out.push_back(std::move(end));
  }
};

void StopRunning(Turn& turn, v1::StopWorkers::Mode mode, const std::string& reason);

// core_leaving.cc
void HandleLeaveAsked(Turn& turn, const LeaveAsked& asked);
void HandleJobEnded(Turn& turn, const v1::JobEnded& ended);
void HandleReleased(Turn& turn, const v1::Released& released);
void SayLeaving(Turn& turn);
// A Welcome came: whoever was asked to leave before it now leaves as planned.
void LeaveAfterWelcome(Turn& turn);
void LeaveAtOnce(Turn& turn);
// Nothing runs here any more: the agent's end.
void EndLeaving(Turn& turn);

}  // namespace ddprun::agent
