// Proofs that both sides of a stream know the job's secret, without showing it.
//
// A proof is HMAC-SHA256(secret, message), where the message is each of these with its length in
// front (8 bytes, big-endian): a label of the direction, job id, node, incarnation, agent's nonce,
// coordinator's nonce, Hello.time_ns as 8 bytes big-endian. Both sides put 32 fresh random bytes
// in, so a proof that was heard is worth nothing on another stream; the label keeps the one side's
// from being the other's. Pure but for MakeNonce. Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace ddprun::net {

constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;

struct ProofSubject {
  std::string job_id;  // the coordinator's
  std::string node;
  std::string incarnation;
  std::string agent_nonce;
  std::string coordinator_nonce;
  int64_t time_ns = 0;  // Hello.time_ns
};

// "" without a secret.
std::string AgentProof(absl::string_view secret, const ProofSubject& subject);
std::string CoordinatorProof(absl::string_view secret, const ProofSubject& subject);

// In a time that does not tell where they differ.
bool SameProof(absl::string_view one, absl::string_view other);

// kNonceBytes from the kernel.
std::string MakeNonce();

}  // namespace ddprun::net
