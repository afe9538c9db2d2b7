// The far side of `ddprun doctor --peers`: answers questions, one JSON object a line, on standard
// input and output until the first one ends. It is started over ssh, opens a port only when asked,
// and leaves nothing behind.
//
//   {"ask":"clock"}                                     {"time_ns":…}
//   {"ask":"report"}                                    what `ddprun doctor --json` prints
//   {"ask":"listen","towards":"10.0.0.1"}               {"port":…,"token":"…","address":"10.0.0.2"}
//   {"ask":"connect","address":"…","port":…,"token":…}  {"error":""}
//   {"ask":"resolve","name":"a"}                        {"addresses":["10.0.0.1"],"error":""}
// A question that is none of these is answered with {"error":"…"}.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "launcher/cli/doctor_finding.h"

namespace ddprun::doctor {

inline constexpr size_t kAnswerBytesMax = 256 << 10;  // of a line, both ways

// Answers what comes from `in_fd` on `out_fd`. Ends at the end of `in_fd`, or after a minute in
// which nothing came.
void AnswerQuestions(int in_fd, int out_fd, const std::function<Report()>& make_report);

}  // namespace ddprun::doctor
