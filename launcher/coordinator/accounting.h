// Where a job's time goes: productive time, and the time lost to each failure and cause. Pure.
//
// A failed generation's lost time runs from the last moment at which it got on (its last completed
// step; for a program that reports no steps the moment of its failure; the start of the generation
// if it never got to work) until the next generation works (its first completed step; without
// steps: all its workers have started), or begins and fails in its turn, or the job ends. Steps
// that are done again are added. Each moment is counted once.
#pragma once

#include <nlohmann/json.hpp>

#include "launcher/coordinator/state.h"

namespace ddprun::coordinator {

// The generation has got to work: closes what the failure before it has cost. Returns the fields
// for the event that says so (`time_lost_s`, `lost_to`); empty when nothing was lost.
nlohmann::ordered_json AccountWorkBegins(State& state);

// All workers of a generation have started: that is work where no steps are reported.
nlohmann::ordered_json AccountAllStarted(State& state);

// The generation is over and nothing of it is left: its productive time, and how far it came.
void AccountGeneration(State& state, bool had_started);

// It was a failure, of this cause: its lost time begins. Closes that of the failure before it, when
// no work came between them; returns the fields for generation_ended.
nlohmann::ordered_json AccountFailure(State& state, Cause cause, bool had_started);

// The job ends: closes what is open; returns the fields for job_finished.
nlohmann::ordered_json AccountEnd(State& state);

// Productive share of the time since the job's start (of this run of ddprun).
double Goodput(const State& state);

}  // namespace ddprun::coordinator
