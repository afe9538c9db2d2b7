#include "launcher/coordinator/admission.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "launcher/net/limits.h"
#include "launcher/net/text.h"

namespace ddprun::coordinator {
namespace {

constexpr size_t kShortTextBytesMax = 256;  // job ids, addresses, versions, cards
constexpr int kVersionsMax = 16;

v1::Refusal RefusalOf(v1::Refusal::Kind kind, std::string reason) {
  v1::Refusal refusal;
  refusal.set_kind(kind);
  refusal.set_reason(std::move(reason));
  return refusal;
}

bool IsShortText(const std::string& text) {
  return text.size() <= kShortTextBytesMax && net::Shown(text, kShortTextBytesMax + 1) == text;
}

// Names and texts of a Hello: "" where all are in order.
std::string MalformedPart(const v1::Hello& hello) {
  if (!net::IsName(hello.incarnation())) return "the incarnation is no name";
  if (hello.nonce().size() != net::kNonceBytes) return "the nonce has not 32 bytes";
  const std::pair<const char*, const std::string*> texts[] = {
      {"job id", &hello.job_id()},   {"boot id", &hello.boot_id()},
      {"address", &hello.address()}, {"leader token", &hello.leader_token()},
      {"version", &hello.version()}, {"network card", &hello.interface()}};
  for (const auto& [what, text] : texts) {
    if (!IsShortText(*text)) return absl::StrCat("the ", what, " is too long or not printable");
  }
  if (hello.versions_size() > kVersionsMax) return "too many versions";
  for (const auto& [name, version] : hello.versions()) {
    if (!IsShortText(name) || !IsShortText(version)) return "a version is not printable";
  }
  return "";
}

std::string Off(int64_t off_ns) {
  const int64_t seconds = std::abs(off_ns) / 1'000'000'000;
  return absl::StrCat(seconds, off_ns > 0 ? " s ahead of" : " s behind");
}

}  // namespace

std::optional<v1::Refusal> CheckHello(const Admission& admission, const v1::Hello& hello,
                                      bool known, int64_t now_ns) {
  if (hello.ByteSizeLong() > net::kHelloBytesMax) {
    return RefusalOf(v1::Refusal::LIMIT,
                     absl::StrCat("a Hello of ", hello.ByteSizeLong(), " bytes; at most ",
                                  net::kHelloBytesMax, " are taken"));
  }
  if (!net::IsName(hello.node())) {
    return RefusalOf(v1::Refusal::NAME,
                     absl::StrCat("\"", net::Shown(hello.node(), net::kNameBytesMax),
                                  "\" cannot be a node's name: give it one of 1 to 64 letters, "
                                  "digits and ._- by --node"));
  }
  const std::string malformed = MalformedPart(hello);
  if (!malformed.empty()) {
    return RefusalOf(v1::Refusal::MALFORMED, absl::StrCat("malformed Hello: ", malformed));
  }
  if (!hello.job_id().empty() && hello.job_id() != admission.job_id) {
    return RefusalOf(
        v1::Refusal::JOB,
        absl::StrCat("this coordinator runs job ", net::Shown(admission.job_id), ", not ",
                     hello.job_id(), ": is --coordinator right, or --job-id?"));
  }
  if (known) return std::nullopt;  // a clock that is set while the job runs must cost no node
  if (hello.time_ns() <= 0) return RefusalOf(v1::Refusal::CLOCK, "the node tells no time");
  const int64_t off_ns = hello.time_ns() - now_ns;
  if (std::abs(off_ns) > net::kClockSkewNsMax) {
    return RefusalOf(
        v1::Refusal::CLOCK,
        absl::StrCat("the clock of node ", hello.node(), " is ", Off(off_ns),
                     " the coordinator's, and more than ", net::kClockSkewNsMax / 1'000'000'000,
                     " s are not allowed: set it (chronyd, timedatectl)"));
  }
  return std::nullopt;
}

net::ProofSubject SubjectOf(const Admission& admission, const v1::Hello& hello,
                            const std::string& coordinator_nonce) {
  return {admission.job_id, hello.node(),      hello.incarnation(),
          hello.nonce(),    coordinator_nonce, hello.time_ns()};
}

std::optional<v1::Refusal> CheckAnswer(const Admission& admission, const v1::Answer& answer,
                                       const net::ProofSubject& subject) {
  constexpr char kFix[] = "set DDPRUN_SECRET or DDPRUN_SECRET_FILE to the same on all nodes";
  if (admission.secret.empty() && !answer.proof().empty()) {
    return RefusalOf(v1::Refusal::SECRET,
                     absl::StrCat("node ", subject.node,
                                  " has a secret, and this coordinator has none: ", kFix));
  }
  if (!admission.secret.empty() && answer.proof().empty()) {
    return RefusalOf(v1::Refusal::SECRET, absl::StrCat("node ", subject.node, " has no secret, ",
                                                       "and this job has one: ", kFix));
  }
  if (!net::SameProof(answer.proof(), net::AgentProof(admission.secret, subject))) {
    return RefusalOf(
        v1::Refusal::SECRET,
        absl::StrCat("node ", subject.node, " does not know the secret of this job: ", kFix));
  }
  const net::SharedFile& file = admission.shared_file;
  if (!file.path.empty() && answer.shared_value() != file.value) {
    const std::string why =
        answer.shared_error().empty() ? "something else is there" : answer.shared_error();
    return RefusalOf(
        v1::Refusal::RUN_FOLDER,
        absl::StrCat("the run folder is not shared: node ", subject.node, " does not see ",
                     net::Shown(file.path), " (", net::Shown(why),
                     "): put --run-dir on a file system that all nodes have at that path"));
  }
  return std::nullopt;
}

}  // namespace ddprun::coordinator
