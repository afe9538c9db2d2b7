#include "launcher/net/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

namespace ddprun::net {
namespace {

void AppendNumber(uint64_t number, std::string* out) {
  for (int shift = 56; shift >= 0; shift -= 8) out->push_back(static_cast<char>(number >> shift));
}

void AppendField(absl::string_view field, std::string* out) {
  AppendNumber(field.size(), out);
  out->append(field.data(), field.size());
}

std::string Proof(absl::string_view secret, absl::string_view label, const ProofSubject& subject) {
  if (secret.empty()) return "";
  std::string message;
  AppendField(label, &message);
  AppendField(subject.job_id, &message);
  AppendField(subject.node, &message);
  AppendField(subject.incarnation, &message);
  AppendField(subject.agent_nonce, &message);
  AppendField(subject.coordinator_nonce, &message);
  std::string time;
  AppendNumber(static_cast<uint64_t>(subject.time_ns), &time);
  AppendField(time, &message);
  std::string proof(kProofBytes, '\0');
  unsigned bytes = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &bytes);
  if (done == nullptr || bytes != kProofBytes) std::abort();
  return proof;
}

}  // namespace

std::string AgentProof(absl::string_view secret, const ProofSubject& subject) {
  return Proof(secret, "ddprun agent 1", subject);
}

std::string CoordinatorProof(absl::string_view secret, const ProofSubject& subject) {
  return Proof(secret, "ddprun coordinator 1", subject);
}

bool SameProof(absl::string_view one, absl::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string MakeNonce() {
  std::string nonce(kNonceBytes, '\0');
  size_t got = 0;
  while (got < nonce.size()) {
    const ssize_t n = getrandom(nonce.data() + got, nonce.size() - got, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) std::abort();  // no nonce, no proof
    got += static_cast<size_t>(n);
  }
  return nonce;
}

}  // namespace ddprun::net
