#include "launcher/agent/agent.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/boot_id.h"
#include "common/worker_versions.h"
#include "launcher/agent/lease_clock.h"
#include "launcher/agent/node_generation.h"
#include "launcher/agent/stream.h"
#include "launcher/net/spare_text.h"
#include "launcher/net/text.h"

namespace ddprun::agent {
namespace {

std::string RandomHex() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

constexpr int64_t kTellWaitingNs = 10'000'000'000;

std::string DurationText(double seconds) {
  constexpr double kMinute = 60;
  const bool minutes = seconds >= 2 * kMinute && std::fmod(seconds, kMinute) == 0;
  return minutes ? absl::StrCat(seconds / kMinute, " min") : absl::StrCat(seconds, " s");
}

}  // namespace

class Agent::Impl {
 public:
  explicit Impl(AgentOptions options) : options_(std::move(options)) {
    state_.identity = options_.identity;
    state_.identity.boot_id = BootId();
    state_.identity.incarnation = RandomHex();
    state_.identity.interface = InterfaceOf(options_.identity.address);
    state_.identity.versions = ReadWorkerVersions(options_.worker_path);
    state_.join_timeout_seconds = options_.join_timeout_seconds;
    generation_ = std::make_unique<NodeGeneration>(NodeGeneration::Options{
        options_.identity.node, options_.keeper_path, options_.worker_path, options_.console,
        &clock_, [this] { Wake(); }, options_.machine,
        NodeOwn{options_.identity.address, state_.identity.interface, options_.several_nodes,
                options_.environment, options_.gpus}});
  }

  absl::Status Start() {
    wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) return absl::ErrnoToStatus(errno, "eventfd");
    // Orphans of a killed keeper come to us and not to init, so that they can be found and ended.
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
      return absl::ErrnoToStatus(errno, "PR_SET_CHILD_SUBREAPER");
    if (options_.several_nodes) {
      absl::Status held = generation_->HoldPort();
      if (!held.ok()) return held;
    }
    Connect();
    loop_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  ~Impl() {
    Leave("the agent ends", /*planned=*/false);
    if (loop_.joinable()) loop_.join();
    stream_.reset();
    if (wake_fd_ >= 0) close(wake_fd_);
  }

  AgentEnd WaitForEnd() {
    std::unique_lock lock(end_mutex_);
    end_changed_.wait(lock, [this] { return ended_; });
    return end_;
  }

  void Leave(const std::string& reason, bool planned) { Post(LeaveAsked{reason, !planned}); }

 private:
  // ---- threads → loop

  void Wake() {
    const uint64_t one = 1;
    if (write(wake_fd_, &one, sizeof one) < 0) return;  // already counted to the full: awake
  }

  void Post(Event event) {
    {
      std::lock_guard lock(inbox_mutex_);
      inbox_.push_back(std::move(event));
    }
    Wake();
  }

  // What a stream says that was replaced since carries its old number, and is dropped by the core.
  void Connect() {
    outgoing_.clear();
    stream_.reset();
    const uint64_t number = ++streams_made_;
    stream_ = std::make_unique<CoordinatorStream>(
        CoordinatorStream::Options{options_.channel, options_.over_network, options_.coordinator,
                                   options_.security, /*first=*/state_.link_number == 0},
        [this, number](v1::CoordinatorMessage message) { Post(Dated(std::move(message), number)); },
        [this, number](std::string reason) {
          Post(Disconnected{std::move(reason), number});
        });
    state_.identity.master_port = generation_->held_port();
    Handle(Connected{number});
    FlushUp();
  }

  // What one turn of the loop has to say travels together: a node with many workers costs few
  // messages.
  void FlushUp() {
    if (!outgoing_.empty()) stream_->SendAll(std::exchange(outgoing_, {}));
  }

  // The answer to a heartbeat gives the coordinator's clock in the middle of the round trip (as NTP
  // does), give or take half of it.
  static CoordinatorSaid Dated(v1::CoordinatorMessage message, uint64_t stream) {
    CoordinatorSaid said{std::move(message), 0, 0, stream};
    if (!said.message.has_heartbeat_answer()) return said;
    const auto& answer = said.message.heartbeat_answer();
    const int64_t sent = answer.heartbeat_sent_ns();
    const int64_t now = LeaseClock::NowNs(CLOCK_REALTIME);
    said.clock_offset_ns = answer.sent_ns() - (sent + (now - sent) / 2);
    said.clock_uncertainty_ns = (now - sent) / 2;
    return said;
  }

  // ---- the loop

  void Loop() {
    while (!state_.ended) {
      Wait();
      std::deque<Event> events;
      {
        std::lock_guard lock(inbox_mutex_);
        events.swap(inbox_);
      }
      for (const Event& event : events) Handle(event);
      generation_->Pump(clock_.NowNs());
      HandleGeneration();
      const int64_t now = clock_.NowNs();
      const int64_t deadline = NextDeadlineNs(state_);
      if (deadline != 0 && now >= deadline) Handle(TimePassed{});
      if (reconnect_ns_ != 0 && now >= reconnect_ns_) {
        reconnect_ns_ = 0;
        Connect();
      }
      HandleGeneration();
      FlushUp();
    }
  }

  // What happened to the generation; an answer of the core may make more happen at once.
  void HandleGeneration() {
    for (std::deque<Event> events = generation_->TakeEvents(); !events.empty();
         events = generation_->TakeEvents()) {
      for (const Event& event : events) Handle(event);
    }
  }

  void Wait() {
    std::vector<pollfd> polls = {{wake_fd_, POLLIN, 0}};
    generation_->AddPolls(&polls);
    int64_t next = NextDeadlineNs(state_);
    for (int64_t other : {reconnect_ns_, generation_->NextDeadlineNs()}) {
      if (other != 0 && (next == 0 || other < next)) next = other;
    }
    timespec timeout = {};
    if (next != 0) {
      const int64_t left = std::max<int64_t>(next - clock_.NowNs(), 0);
      timeout = {left / 1'000'000'000, left % 1'000'000'000};
    }
    ppoll(polls.data(), polls.size(), next != 0 ? &timeout : nullptr, nullptr);
    uint64_t count = 0;
    if (read(wake_fd_, &count, sizeof count) < 0) return;  // nothing was posted
  }

  // Once, so that nobody waits for a coordinator whose address is wrong without knowing. What ends
  // the agent for good is told by whoever started it.
  void SayThatNobodyAnswers(const std::string& reason) {
    if (state_.ended || told_that_nobody_answers_ || state_.link_number != 0) return;
    told_that_nobody_answers_ = true;
    options_.console->Say(absl::StrCat("ddprun: ", reason, "; trying again for ",
                                       DurationText(options_.join_timeout_seconds)));
  }

  // An agent that has lost its coordinator, and one that has found it again, says so.
  void SayWhetherAttached(const Event& event, bool was_attached) {
    if (!options_.over_network || state_.job_over || state_.ended) return;
    const auto* broken = std::get_if<Disconnected>(&event);
    if (broken != nullptr && was_attached && !state_.attached) {
      told_that_lost_ = true;
      options_.console->Say(
          absl::StrCat("ddprun: ", broken->reason, "; trying to find the coordinator again"));
    }
    if (state_.attached && std::exchange(told_that_lost_, false)) {
      options_.console->Say("ddprun: the coordinator is found again");
    }
  }

  // L39: on a node that has joined, too, people see what the job waits for.
  void SayWhatIsAwaited(const v1::HeartbeatAnswer& answer) {
    if (!options_.over_network || SayWhetherSpare(answer.waiting())) return;
    if (answer.waiting().empty()) return;
    const int64_t now_ns = clock_.NowNs();
    if (told_waiting_ns_ != 0 && now_ns - told_waiting_ns_ < kTellWaitingNs) return;
    told_waiting_ns_ = now_ns;
    options_.console->Say(absl::StrCat("ddprun: waiting: ", net::Shown(answer.waiting())));
  }

  // Once: otherwise nothing would be seen on a node that runs nothing.
  bool SayWhetherSpare(const std::string& waiting) {
    const bool spare = absl::StartsWith(waiting, net::kSpareText);
    if (spare && !told_spare_) options_.console->Say("ddprun: " + net::Shown(waiting));
    told_spare_ = spare;
    return spare;
  }

  void Handle(const Event& event) {
    if (const auto* broken = std::get_if<Disconnected>(&event))
      SayThatNobodyAnswers(broken->reason);
    if (const auto* said = std::get_if<CoordinatorSaid>(&event)) {
      if (said->message.has_heartbeat_answer()) SayWhatIsAwaited(said->message.heartbeat_answer());
      if (said->message.has_welcome())
        clock_.Welcomed(state_.identity.boot_id, said->message.welcome().boot_id());
    }
    const bool was_attached = state_.attached;
    for (Effect& effect : Step(state_, event, clock_.NowNs())) {
      std::visit([this](auto& e) { Do(e); }, effect);
    }
    SayWhetherAttached(event, was_attached);
  }

  // ---- effects

  void Do(SendUp& e) {
    if (e.message.has_heartbeat())
      e.message.mutable_heartbeat()->set_sent_ns(LeaseClock::NowNs(CLOCK_REALTIME));
    outgoing_.push_back(std::move(e.message));
  }
  void Do(SpawnKeeper& e) { generation_->Begin(e); }
  void Do(OrderKeeper& e) { generation_->Stop(e.order); }
  void Do(TellWorker& e) { generation_->Tell(e.message); }
  void Do(SignalWorkers& e) { generation_->Signal(e); }
  void Do(ExamineWorkers& e) { generation_->Examine(e.generation); }
  void Do(RenewLease& e) { generation_->RenewLease(e.until_ns); }
  void Do(Reconnect& e) { reconnect_ns_ = e.not_before_ns; }
  void Do(End& e) {
    FlushUp();
    stream_->FinishWriting();
    std::lock_guard lock(end_mutex_);
    end_ = {e.exit_code, e.reason, e.left, state_.job_over, state_.link_number == 0};
    ended_ = true;
    end_changed_.notify_all();
  }

  AgentOptions options_;
  int wake_fd_ = -1;
  std::mutex inbox_mutex_;
  std::deque<Event> inbox_;

  // Owned by the loop thread (and by Start before it runs).
  State state_;
  std::unique_ptr<CoordinatorStream> stream_;
  std::vector<v1::AgentMessage> outgoing_;  // not given to the stream yet
  uint64_t streams_made_ = 0;
  int64_t reconnect_ns_ = 0;
  bool told_that_nobody_answers_ = false;
  bool told_that_lost_ = false;
  bool told_spare_ = false;
  int64_t told_waiting_ns_ = 0;  // 0: never
  LeaseClock clock_;             // of everything that Step is told
  std::unique_ptr<NodeGeneration> generation_;

  std::mutex end_mutex_;
  std::condition_variable end_changed_;
  bool ended_ = false;
  AgentEnd end_;

  std::thread loop_;
};

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::~Agent() = default;

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  absl::Status status = impl->Start();
  if (!status.ok()) return status;
  return std::unique_ptr<Agent>(new Agent(std::move(impl)));
}

AgentEnd Agent::WaitForEnd() {
  return impl_->WaitForEnd();
}
int Agent::WaitForEnd(std::string* reason) {
  AgentEnd end = impl_->WaitForEnd();
  if (reason != nullptr) *reason = std::move(end.reason);
  return end.exit_code;
}
void Agent::Leave(const std::string& reason, bool planned) {
  impl_->Leave(reason, planned);
}

std::string DefaultNodeName() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "node";
  std::string text = name;
  return text.substr(0, text.find('.'));
}

}  // namespace ddprun::agent
