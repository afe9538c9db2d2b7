#include "launcher/agent/agent.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/agent/keeper_facts.h"
#include "launcher/agent/keeper_process.h"
#include "launcher/agent/orphans.h"
#include "launcher/agent/reserved_port.h"
#include "launcher/agent/stream.h"
#include "launcher/agent/worker_spec.h"

namespace ddprun::agent {
namespace {

constexpr int kPacketsPerTurn = 256;  // of one keeper, so that orders are never starved by output

int64_t NowNs(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

std::string RandomHex() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

std::string BootId() {
  absl::StatusOr<std::string> text = PosixFileSystem().ReadFile("/proc/sys/kernel/random/boot_id");
  if (!text.ok()) return "";
  return text->substr(0, text->find('\n'));
}

}  // namespace

class Agent::Impl {
 public:
  explicit Impl(AgentOptions options) : options_(std::move(options)) {
    state_.identity = options_.identity;
    state_.identity.boot_id = BootId();
    state_.identity.incarnation = RandomHex();
  }

  absl::Status Start() {
    wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) return absl::ErrnoToStatus(errno, "eventfd");
    // Orphans of a killed keeper come to us and not to init, so that they can be found and ended.
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
      return absl::ErrnoToStatus(errno, "PR_SET_CHILD_SUBREAPER");
    Connect();
    loop_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  ~Impl() {
    Leave("the agent ends");
    if (loop_.joinable()) loop_.join();
    stream_.reset();
    if (wake_fd_ >= 0) close(wake_fd_);
  }

  int WaitForEnd(std::string* reason) {
    std::unique_lock lock(end_mutex_);
    end_changed_.wait(lock, [this] { return ended_; });
    if (reason != nullptr) *reason = end_.reason;
    return end_.exit_code;
  }

  void Leave(const std::string& reason) {
    {
      std::lock_guard lock(inbox_mutex_);
      leave_reason_ = reason;
      leaving_ = true;
    }
    Wake();
  }

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

  void Connect() {
    stream_.reset();
    stream_ = std::make_unique<CoordinatorStream>(
        options_.channel,
        [this](v1::CoordinatorMessage message) {
          Post(CoordinatorSaid{std::move(message), 0, 0});
        },
        [this](std::string reason) { Post(Disconnected{std::move(reason)}); });
    Handle(Connected{});
  }

  // The answer to a heartbeat gives the coordinator's clock in the middle of the round trip (as NTP
  // does), give or take half of it.
  static CoordinatorSaid Dated(v1::CoordinatorMessage message) {
    CoordinatorSaid said{std::move(message), 0, 0};
    if (!said.message.has_heartbeat_answer()) return said;
    const auto& answer = said.message.heartbeat_answer();
    const int64_t sent = answer.heartbeat_sent_ns();
    const int64_t now = NowNs(CLOCK_REALTIME);
    said.clock_offset_ns = answer.sent_ns() - (sent + (now - sent) / 2);
    said.clock_uncertainty_ns = (now - sent) / 2;
    return said;
  }

  // ---- the loop

  void Loop() {
    while (!state_.ended) {
      Wait();
      std::deque<Event> events;
      bool leave = false;
      {
        std::lock_guard lock(inbox_mutex_);
        events.swap(inbox_);
        leave = leaving_;
      }
      for (const Event& event : events) Handle(event);
      if (leave && !state_.ended) return GiveUp();
      if (keeper_) PumpKeeper();
      const int64_t now = NowNs(CLOCK_BOOTTIME);
      const int64_t deadline = NextDeadlineNs(state_);
      if (deadline != 0 && now >= deadline) Handle(TimePassed{});
      if (reconnect_ns_ != 0 && now >= reconnect_ns_) {
        reconnect_ns_ = 0;
        Connect();
      }
    }
  }

  void Wait() {
    pollfd polls[3] = {{wake_fd_, POLLIN, 0}, {-1, 0, 0}, {-1, 0, 0}};
    if (keeper_) {
      polls[1] = {keeper_->pid_fd(), POLLIN, 0};
      polls[2] = {keeper_->control_fd(),
                  static_cast<short>(POLLIN | (keeper_->WantsToSend() ? POLLOUT : 0)), 0};
      if (keeper_closed_) polls[2].fd = -1;
    }
    int64_t next = NextDeadlineNs(state_);
    if (reconnect_ns_ != 0 && (next == 0 || reconnect_ns_ < next)) next = reconnect_ns_;
    timespec timeout = {};
    if (next != 0) {
      const int64_t left = std::max<int64_t>(next - NowNs(CLOCK_BOOTTIME), 0);
      timeout = {left / 1'000'000'000, left % 1'000'000'000};
    }
    ppoll(polls, 3, next != 0 ? &timeout : nullptr, nullptr);
    uint64_t count = 0;
    if (read(wake_fd_, &count, sizeof count) < 0) return;  // nothing was posted
  }

  void Handle(const Event& event) {
    for (Effect& effect : Step(state_, event, NowNs(CLOCK_BOOTTIME))) {
      std::visit([this](auto& e) { Do(e); }, effect);
    }
  }

  // ---- effects

  void Do(SendUp& e) {
    if (e.message.has_heartbeat())
      e.message.mutable_heartbeat()->set_sent_ns(NowNs(CLOCK_REALTIME));
    stream_->Send(std::move(e.message));
  }
  void Do(SpawnKeeper& e) {
    notes_ = WorkerNotes{};
    notes_.generation = e.order.generation();
    notes_.first_rank = e.order.first_rank();
    absl::Status status = StartKeeper(e);
    if (status.ok()) return;
    // Told as a failure of the node's first rank, so that it stands in the report.
    v1::AgentMessage fact;
    auto* failed = fact.mutable_worker_failed();
    failed->set_generation(e.order.generation());
    failed->set_rank(e.order.first_rank());
    failed->set_kind(v1::WorkerFailed::START);
    failed->set_message(std::string(status.message()));
    failed->set_time_ns(1);
    Post(KeeperSaid{e.order.generation(), std::move(fact)});
    Post(KeeperGone{e.order.generation(), false, std::string(status.message()), {}});
  }
  void Do(OrderKeeper& e) {
    if (!keeper_ || notes_.generation != e.order.generation()) return;
    if (notes_.stop_ordered_ns == 0) notes_.stop_ordered_ns = NowNs(CLOCK_REALTIME);
    const char* mode = e.order.mode() == v1::StopWorkers::ABORT  ? "abort"
                       : e.order.mode() == v1::StopWorkers::STOP ? "stop"
                                                                 : "kill";
    PacketWriter writer("Stop");
    writer.Text("MODE", mode).Text("REASON", e.order.reason());
    if (e.order.grace_seconds() > 0) {
      writer.Integer("GRACE_MS", static_cast<int64_t>(e.order.grace_seconds() * 1000));
    }
    keeper_->Send(writer.Finish());
  }
  void Do(TellWorker& e) {
    int64_t rank = -1;
    std::optional<std::string> packet = WorkerPacketOf(e.message, &rank);
    if (!packet || !keeper_) return;
    for (const auto& [own_rank, path] : notes_.log_paths) {
      if (rank >= 0 && own_rank != static_cast<uint32_t>(rank)) continue;
      keeper_->Send(PacketWriter("Packet").Unsigned("RANK", own_rank).FinishWithBody(*packet));
    }
  }
  void Do(SignalWorkers& e) {
    if (keeper_) keeper_->Send(PacketWriter("Signal").Integer("NUMBER", e.signal).Finish());
  }
  void Do(RenewLease& e) {
    if (!keeper_) return;
    // As a moment, so that the time for which the packet waits counts too.
    const int64_t until = NowNs(CLOCK_BOOTTIME) + e.milliseconds * 1'000'000;
    keeper_->Send(PacketWriter("Lease").Integer("UNTIL_NS", until).Finish());
  }
  void Do(Reconnect& e) { reconnect_ns_ = e.not_before_ns; }
  void Do(End& e) {
    stream_->FinishWriting();
    std::lock_guard lock(end_mutex_);
    end_ = e;
    ended_ = true;
    end_changed_.notify_all();
  }

  // ---- the keeper

  absl::Status StartKeeper(const SpawnKeeper& e) {
    const v1::StartWorkers& order = e.order;
    absl::Status made = PosixFileSystem().MakeDirectories(ParentPath(LogPath(order, 0)));
    if (made.ok()) made = PosixFileSystem().MakeDirectories(order.spec().run_dir() + "/state");
    if (!made.ok()) return made;
    NodeFacts facts{state_.identity.node, options_.worker_path, 0};
    if (order.group_rank() == 0 && order.master_port() == 0) {
      absl::Status reserved = master_port_.Reserve(order.master_address());
      if (!reserved.ok()) return reserved;
      facts.master_port = master_port_.port();
    }
    for (uint32_t i = 0; i < order.local_world_size(); ++i) {
      const uint32_t rank = order.first_rank() + i;
      notes_.log_paths[rank] = LogPath(order, rank);
    }
    absl::StatusOr<std::unique_ptr<KeeperProcess>> keeper = KeeperProcess::Spawn(
        options_.keeper_path, MakeKeeperSpec(order, facts, e.lease_milliseconds));
    if (!keeper.ok()) return keeper.status();
    keeper_ = std::move(*keeper);
    keeper_gone_.reset();
    keeper_closed_ = false;
    return absl::OkStatus();
  }

  void PumpKeeper() {
    keeper_->Flush();
    // Whether it has ended is asked before its last packets are read, so that none is missed.
    const bool dead = keeper_->Reap();
    std::string bytes;
    for (int i = 0; dead || i < kPacketsPerTurn; ++i) {
      bool end = false;
      if (!keeper_->Receive(&bytes, &end)) {
        keeper_closed_ = keeper_closed_ || end;
        break;
      }
      std::optional<Packet> packet = Packet::Parse(bytes, nullptr);
      if (packet) HandlePacket(*packet);
    }
    if (dead) HandleKeeperEnd();
  }

  void HandlePacket(const Packet& packet) {
    if (packet.type() == "Console") {
      options_.console->WorkerOutput(Prefix(packet), packet.body().value_or(""),
                                     packet.Unsigned("DROPPED").value_or(0));
      return;
    }
    if (packet.type() == "Gone") {
      keeper_gone_ = KeeperGone{notes_.generation, false, "all its workers ended", {}};
      return;
    }
    if (packet.type() == "LeaseExpired") {
      options_.console->Say(
          "ddprun: the coordinator was not heard for the length of the lease; the workers of this "
          "node are ended");
    }
    if (packet.type() == "Exited") options_.console->EndOf(Prefix(packet));
    if (packet.type() == "Unkillable") {
      unkillable_.push_back(static_cast<int32_t>(packet.Integer("PID").value_or(0)));
    }
    std::optional<v1::AgentMessage> fact = FactOf(packet, notes_);
    if (fact) Handle(KeeperSaid{notes_.generation, std::move(*fact)});
  }

  std::string Prefix(const Packet& packet) const {
    std::string rank = absl::StrCat(packet.Unsigned("RANK").value_or(0));
    if (!state_.running || state_.running->order.group_world_size() == 1) return rank;
    return absl::StrCat(state_.identity.node, ":", rank);
  }

  void HandleKeeperEnd() {
    const uint64_t generation = notes_.generation;
    keeper_.reset();
    KeeperGone gone{generation, true, "its keeper died", {}};
    if (keeper_gone_) {
      gone = *keeper_gone_;
    } else {
      // The workers died with it (PR_SET_PDEATHSIG); their children were left to us.
      gone.unkillable_pids = EndOrphans();
    }
    gone.unkillable_pids.insert(gone.unkillable_pids.end(), unkillable_.begin(), unkillable_.end());
    unkillable_.clear();
    master_port_.Release();
    Handle(gone);
  }

  // Leaves without further talk: the destructor of the keeper's socket makes it kill everything.
  void GiveUp() {
    if (stream_) {
      v1::AgentMessage message;
      message.mutable_leaving()->set_reason(leave_reason_);
      stream_->Send(std::move(message));
    }
    keeper_.reset();
    EndOrphans();
    End end{1, leave_reason_};
    Do(end);
    state_.ended = true;
  }

  AgentOptions options_;
  int wake_fd_ = -1;
  std::mutex inbox_mutex_;
  std::deque<Event> inbox_;
  bool leaving_ = false;
  std::string leave_reason_;

  // Owned by the loop thread (and by Start before it runs).
  State state_;
  std::unique_ptr<CoordinatorStream> stream_;
  int64_t reconnect_ns_ = 0;
  std::unique_ptr<KeeperProcess> keeper_;
  bool keeper_closed_ = false;
  std::optional<KeeperGone> keeper_gone_;
  std::vector<int32_t> unkillable_;
  WorkerNotes notes_;
  ReservedPort master_port_;

  std::mutex end_mutex_;
  std::condition_variable end_changed_;
  bool ended_ = false;
  End end_;

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

int Agent::WaitForEnd(std::string* reason) {
  return impl_->WaitForEnd(reason);
}
void Agent::Leave(const std::string& reason) {
  impl_->Leave(reason);
}

std::string DefaultNodeName() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "node";
  std::string text = name;
  return text.substr(0, text.find('.'));
}

}  // namespace ddprun::agent
