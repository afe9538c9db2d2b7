// Texts that a person sees while a job runs and when it ends. Pure functions of events and results.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ddprun::cli {

using Json = nlohmann::ordered_json;

// "0.8 s", "45 s", "3 min 5 s", "2 h 7 min", "3 d 4 h".
std::string Duration(double seconds);

// "12 kB", "3.4 MB", "1.2 GB", in powers of 1000.
std::string SizeText(uint64_t bytes);

// What is known of the training when a progress line is written.
struct Progress {
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t total_steps = 0;  // 0: unknown
  int64_t epoch = 0;         // 0: unknown
  int64_t epochs = 0;
  bool has_loss = false;
  double loss = 0;
  double samples_per_second = 0;  // 0: unknown
  double steps_per_second = 0;    // 0: unknown, then there is no ETA
};
std::string ProgressLine(const Progress& progress);

// One line for an event, or "" when it is not worth one. Progress and job_finished have none here.
std::string EventLine(const Json& event);

// What the summary needs besides result.json.
struct SummaryContext {
  std::string run_dir;         // as a person would type it
  std::string resume_command;  // "ddprun --resume --run-dir …"
  bool trainer = false;
  double seconds = 0;  // of this run of ddprun
};
// The last lines of a run, from result.json.
std::vector<std::string> Summary(const Json& result, const SummaryContext& context);

}  // namespace ddprun::cli
