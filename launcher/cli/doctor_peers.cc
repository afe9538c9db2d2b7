#include "launcher/cli/doctor_peers.h"

#include <unistd.h>

#include <array>
#include <future>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/cli/doctor_probe.h"
#include "launcher/cli/doctor_session.h"
#include "launcher/cli/remote_start.h"
#include "launcher/net/address.h"
#include "launcher/net/text.h"

namespace ddprun::doctor {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int kClockSamples = 8;
constexpr std::chrono::seconds kConnectMax{3};
constexpr size_t kAddressesMax = 8;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string OwnName() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string TextIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? net::Shown(found->get<std::string>(), 200)
                                                   : "";
}

std::vector<std::string> TextsIn(const Json& json, const char* key) {
  std::vector<std::string> texts;
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) return texts;
  for (const Json& one : *found) {
    if (one.is_string() && texts.size() < kAddressesMax) {
      texts.push_back(net::Shown(one.get<std::string>(), 64));
    }
  }
  return texts;
}

// The whole conversation with one peer. A question that fails ends it: the next ones would, too.
class Examination {
 public:
  Examination(std::string peer, const PeerOptions& options, const Report& ours)
      : peer_(std::move(peer)), options_(options), ours_(ours) {}

  std::vector<Finding> Run() {
    const absl::Status status = Converse();
    if (!status.ok()) {
      findings_.push_back(Problem(
          "asking it", std::string(status.message()), "what was not asked is not known",
          absl::StrCat("test with ", options_.ssh, " -o BatchMode=yes ", peer_, " ",
                       options_.ddprun, " --version; ddprun must be at the same path there")));
    }
    for (Finding& finding : findings_) finding.name = absl::StrCat(peer_, ": ", finding.name);
    return std::move(findings_);
  }

 private:
  absl::StatusOr<Json> Ask(const Json& question) { return session_->Ask(question, deadline_); }

  absl::Status Converse() {
    cli::RemotePlace place;
    place.ssh = options_.ssh;
    const std::string there =
        absl::StrCat("exec ", cli::ShellQuoted(options_.ddprun), " doctor --answer --run-dir ",
                     cli::ShellQuoted(options_.run_dir));
    const std::vector<std::string> command = cli::SshCommand(place, peer_, there);
    absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(command);
    if (!session.ok()) return session.status();
    session_ = *std::move(session);
    for (auto step : {&Examination::CompareClocks, &Examination::CompareNames,
                      &Examination::TryConnections, &Examination::CompareReports}) {
      absl::Status status = (this->*step)();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status CompareClocks() {
    std::vector<ClockSample> samples;
    for (int i = 0; i < kClockSamples; ++i) {
      ClockSample sample;
      sample.asked = NowNs();
      const absl::StatusOr<Json> answer = Ask({{"ask", "clock"}});
      sample.answered = NowNs();
      if (!answer.ok()) return answer.status();
      const auto time = answer->find("time_ns");
      if (time == answer->end() || !time->is_number_integer()) {
        return absl::UnavailableError("it does not tell its time");
      }
      sample.theirs = time->get<int64_t>();
      samples.push_back(sample);
    }
    findings_.push_back(JudgeOffset(OffsetOf(samples)));
    return absl::OkStatus();
  }

  absl::Status CompareNames() {
    PeerNames names;
    names.typed = peer_.substr(peer_.rfind('@') + 1);
    net::Resolution found = net::Resolve(names.typed);
    names.addresses = std::move(found.addresses);
    names.error = std::move(found.error);
    names.own = OwnName();
    const absl::StatusOr<Json> answer = Ask({{"ask", "resolve"}, {"name", names.own}});
    if (!answer.ok()) return answer.status();
    names.addresses_there = TextsIn(*answer, "addresses");
    names.error_there = TextIn(*answer, "error");
    findings_.push_back(JudgePeerNames(names));
    own_address_ = net::ChooseAddress(net::Cards(), "").address;
    if (!names.addresses.empty()) {
      const absl::StatusOr<std::string> local = net::LocalAddressTowards(names.addresses[0]);
      if (local.ok()) own_address_ = *local;
    }
    return absl::OkStatus();
  }

  absl::Status TryConnections() {
    const absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Start();
    if (!listener.ok()) return listener.status();
    const absl::StatusOr<Json> theirs = Ask({{"ask", "listen"}, {"towards", own_address_}});
    if (!theirs.ok()) return theirs.status();
    const auto port = theirs->find("port");
    if (port == theirs->end() || !port->is_number_integer()) {
      return absl::UnavailableError(
          absl::StrCat("it cannot listen on a port: ", TextIn(*theirs, "error")));
    }
    Connection there{own_address_, TextIn(*theirs, "address"), ""};
    there.error = TryConnection(there.to, port->get<int>(), TextIn(*theirs, "token"), kConnectMax);
    const absl::StatusOr<Json> tried = Ask({{"ask", "connect"},
                                            {"address", own_address_},
                                            {"port", (*listener)->port()},
                                            {"token", (*listener)->token()}});
    if (!tried.ok()) return tried.status();
    findings_.push_back(JudgeConnections(there, {there.to, own_address_, TextIn(*tried, "error")}));
    return absl::OkStatus();
  }

  absl::Status CompareReports() {
    const absl::StatusOr<Json> answer = Ask({{"ask", "report"}});
    if (!answer.ok()) return answer.status();
    const absl::StatusOr<Report> theirs = ReportFromJson(answer->dump());
    if (!theirs.ok()) {
      return absl::UnavailableError(
          absl::StrCat("its answer ", std::string(theirs.status().message())));
    }
    for (Finding& finding : JudgeVersions(ours_, *theirs)) findings_.push_back(std::move(finding));
    findings_.push_back(JudgePeerReport(*theirs));
    return absl::OkStatus();
  }

  const std::string peer_;
  const PeerOptions& options_;
  const Report& ours_;
  const Clock::time_point deadline_ = Clock::now() + kPeerTimeMax;
  std::unique_ptr<Session> session_;
  std::string own_address_;
  std::vector<Finding> findings_;
};

}  // namespace

void AskPeers(const std::vector<std::string>& peers, const PeerOptions& options, const Report& ours,
              const std::function<void(const Finding&)>& on_finding) {
  std::vector<std::future<std::vector<Finding>>> running;
  running.reserve(peers.size());
  for (const std::string& peer : peers) {
    running.push_back(std::async(std::launch::async, [&options, &ours, peer] {
      return Examination(peer, options, ours).Run();
    }));
  }
  for (auto& one : running) {
    for (const Finding& finding : one.get()) on_finding(finding);
  }
}

}  // namespace ddprun::doctor
