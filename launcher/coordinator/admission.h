// Who is let in: what a coordinator asks of an agent before its core hears of it.
//
// Hello → Challenge → Answer, then the core answers with Welcome or Refusal. Everything that an
// agent says of itself is checked here for form and bounds, the secret's proof, the clock, and the
// shared run folder; whether the node fits the job is the core's to say. Pure: no clock, thread or
// I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ddprun/v1/agent.pb.h"
#include "launcher/net/proof.h"
#include "launcher/net/shared_file.h"

namespace ddprun::coordinator {

// What the service knows of the job; set once it is submitted.
struct Admission {
  std::string job_id;
  std::string secret;           // "": none
  net::SharedFile shared_file;  // path "": the job needs none
};

// `known`: this incarnation has been let in before. `now_ns`: the coordinator's CLOCK_REALTIME.
std::optional<v1::Refusal> CheckHello(const Admission& admission, const v1::Hello& hello,
                                      bool known, int64_t now_ns);

net::ProofSubject SubjectOf(const Admission& admission, const v1::Hello& hello,
                            const std::string& coordinator_nonce);

std::optional<v1::Refusal> CheckAnswer(const Admission& admission, const v1::Answer& answer,
                                       const net::ProofSubject& subject);

}  // namespace ddprun::coordinator
