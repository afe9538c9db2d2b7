#include "launcher/cli/doctor_secret.h"

#include "absl/strings/str_cat.h"
#include "launcher/net/credentials.h"
#include "launcher/net/secret.h"
#include "launcher/net/security.h"
#include "launcher/net/text.h"

namespace ddprun::doctor {
namespace {

constexpr size_t kSecretBytesComfortable = 16;  // nobody tries them all
constexpr char kMakeOne[] =
    "head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE; DDPRUN_SECRET_FILE=FILE on each node";

const char* ValueOf(const World& world, const char* name) {
  const auto found = world.environment.find(name);
  return found == world.environment.end() ? nullptr : found->second.c_str();
}

Finding CheckSecretOf(const World& world) {
  constexpr char kName[] = "secret";
  const char* file = ValueOf(world, "DDPRUN_SECRET_FILE");
  const absl::StatusOr<std::string> secret = net::ReadSecret(ValueOf(world, "DDPRUN_SECRET"), file);
  if (!secret.ok()) {
    return Problem(kName, net::Shown(secret.status().message()),
                   "jobs over several nodes are refused", kMakeOne);
  }
  if (secret->empty()) {
    return Ok(
        kName, "none",
        absl::StrCat("one node needs none, Slurm and --hosts make their own; else: ", kMakeOne));
  }
  const std::string seen =
      absl::StrCat("of ", secret->size(), " bytes, from ",
                   file == nullptr ? "DDPRUN_SECRET" : absl::StrCat("the file ", net::Shown(file)));
  if (secret->size() >= kSecretBytesComfortable) return Ok(kName, seen);
  return Note(kName, seen, "short ones can be guessed", kMakeOne);
}

}  // namespace

Outcome CheckSecrets(const World& world) {
  Outcome outcome{{CheckSecretOf(world)}, {}};
  if (world.tls_certificate.empty() && world.tls_key.empty() && world.tls_authority.empty()) {
    return outcome;
  }
  net::Security security;
  const absl::Status status =
      net::ReadTls(world.tls_certificate, world.tls_key, world.tls_authority, &security);
  outcome.findings.push_back(status.ok() ? Ok("TLS", "certificate, key and authority fit")
                                         : Problem("TLS", net::Shown(status.message()),
                                                   "a job with it does not start",
                                                   "docs/security.md says how to make them"));
  return outcome;
}

}  // namespace ddprun::doctor
