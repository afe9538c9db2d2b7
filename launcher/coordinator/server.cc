#include "launcher/coordinator/server.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/boot_id.h"
#include "common/mailbox.h"
#include "launcher/coordinator/agent_service.h"
#include "launcher/coordinator/job_records.h"
#include "launcher/coordinator/local_calls.h"
#include "launcher/coordinator/services.h"
#include "launcher/net/credentials.h"
#include "launcher/net/front_door.h"
#include "launcher/net/limits.h"
#include "launcher/net/peer.h"

namespace ddprun::coordinator {
namespace {

// So that what is due by time is not put off for long, however much comes in.
constexpr int kEventsPerTurn = 512;

int64_t MonotonicNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t RealNs() {
  return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::string RandomToken() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

}  // namespace

class CoordinatorServer::Impl {
 public:
  explicit Impl(ServerOptions options)
      : options_(std::move(options)),
        agents_({[this](std::vector<Event> events, const Ticket& ticket) {
                   std::vector<Posted> posted;
                   posted.reserve(events.size());
                   for (Event& event : events) posted.push_back({std::move(event), ticket});
                   mailbox_.PostAll(std::move(posted));
                 },
                 [this](Refused refused) { OnRefused(std::move(refused)); },
                 [this](const std::string& grpc_peer) {
                   if (door_ != nullptr) door_->Admitted(net::PeerText(grpc_peer));
                 }}),
        coordinator_service_(
            {[this](const v1::JobSpec& spec) { return Submit(spec); },
             [this](ControlAsked asked) { Post(asked); },
             [this](const grpc::ServerContext& context) { return local_calls_.IsLocal(context); }},
            feed_) {}

  absl::Status Start() {
    std::optional<net::Listener> listener;
    if (!options_.listen_address.empty()) {
      absl::StatusOr<net::Listener> opened = net::Listener::Open(options_.listen_address);
      if (!opened.ok()) return opened.status();
      listener = std::move(*opened);
    }
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(net::kReceiveBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, net::kMetadataBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, net::kStreamsPerConnectionMax);
    // It measures what a connection could carry, by pings and timers for each: our messages are
    // small, and agents many.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               net::kPingIntervalMinMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, net::kServerKeepaliveMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, net::kKeepaliveTimeoutMilliseconds);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, net::kReadBytesMax);
    builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, net::kReadBytesMax);
    if (listener) {
      acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          net::ServerCredentialsOf(options_.security));
    }
    agents_.Register(builder);
    builder.RegisterService(&coordinator_service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC does not start");
    agents_.Start();
    if (listener) OpenDoor(std::move(*listener));
    return absl::OkStatus();
  }

  ~Impl() {
    if (door_ != nullptr) door_->Stop();
    mailbox_.Close();
    if (loop_thread_.joinable()) loop_thread_.join();
    while (mailbox_.TryTake()) continue;  // streams are not read until what they sent is handled
    agents_.Close();
    records_.reset();
    feed_.End();
    if (server_ != nullptr) {
      // Streams that do not end by themselves are cut off; many need longer to hear of the end.
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1) +
                        std::chrono::milliseconds(2 * agents_.count()));
      server_->Wait();
    }
    agents_.Stop();
  }

  grpc::Status Submit(const v1::JobSpec& spec) {
    std::lock_guard lock(submit_mutex_);
    if (submitted_) {
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "a job runs here already");
    }
    records_ = std::make_unique<JobRecords>(
        state_, feed_,
        JobRecords::Options{options_.version, options_.job_facts_json, options_.point_latest,
                            [this](Event event) { Post(std::move(event)); },
                            [this](const Outcome& outcome) { TellEnd(outcome); }});
    absl::Status status = records_->Open(spec);
    if (!status.ok()) {
      return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                          std::string(status.message()));
    }
    submitted_ = true;
    JobSubmitted event{spec, RandomToken(), options_.version, {}};
    if (spec.resume()) event.past = records_->ReadPast();
    Perform(Step(state_, event, MonotonicNs()));
    Flush();
    agents_.Open({spec.job_id(), options_.security.secret, records_->shared_file()});
    loop_thread_ = std::thread([this] { Loop(); });
    return grpc::Status::OK;
  }

  Outcome WaitForEnd() {
    std::unique_lock lock(end_mutex_);
    end_changed_.wait(lock, [this] { return ended_; });
    return outcome_;
  }

  std::shared_ptr<grpc::Channel> InProcessChannel() { return local_calls_.ChannelTo(*server_); }
  int port() const { return port_; }

 private:
  void OpenDoor(net::Listener listener) {
    port_ = listener.port();
    net::FrontDoor::Options door{std::move(listener)};
    door.tls = options_.security.TlsServer();
    door.hand_over = [this](int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = fd;
      acceptor_->HandleNewConnection(&connection);
    };
    door.refused = [this](const std::string& peer, v1::Refusal::Kind kind, std::string reason) {
      v1::Refusal refusal;
      refusal.set_kind(kind);
      refusal.set_reason(std::move(reason));
      OnRefused({"", peer, std::move(refusal)});
    };
    door.tls_problem = net::LastTlsProblem;
    door_ = std::make_unique<net::FrontDoor>(std::move(door));
  }

  void Post(Event event) { mailbox_.Post({std::move(event), nullptr}); }

  void OnRefused(Refused refused) {
    Post(JoinRefused{refused.node, refused.peer, refused.refusal.kind(), refused.refusal.reason()});
  }

  void Loop() {
    using Clock = std::chrono::steady_clock;
    while (!mailbox_.closed()) {
      std::optional<Clock::time_point> deadline;
      const int64_t next = NextDeadlineNs(state_);
      if (next != 0) deadline = Clock::time_point(std::chrono::nanoseconds(next));
      std::optional<Posted> posted = mailbox_.Take(deadline);
      if (!posted && mailbox_.closed()) return;
      // What else is there already is dealt with in the same turn.
      for (int i = 0; posted && i < kEventsPerTurn; ++i) {
        Handle(posted->event);
        posted = mailbox_.TryTake();
      }
      if (posted) Handle(posted->event);
      if (next != 0 && MonotonicNs() >= next) Perform(Step(state_, TimePassed{}, MonotonicNs()));
      Flush();
    }
  }

  void Handle(const Event& event) {
    Perform(Step(state_, event, MonotonicNs()));
    if (const auto* ended = std::get_if<HookEnded>(&event)) records_->OnHookEnded(*ended);
  }

  void Perform(std::vector<Effect> effects) {
    for (Effect& effect : effects) {
      std::visit([this](auto& e) { Do(e); }, effect);
    }
  }

  void Do(SendToNode& e) {
    if (e.message.has_heartbeat_answer()) {
      e.message.mutable_heartbeat_answer()->set_sent_ns(RealNs());
    }
    if (e.message.has_welcome()) e.message.mutable_welcome()->set_boot_id(BootId());
    if (e.message.has_start_workers()) AddSpec(*e.message.mutable_start_workers());
    outgoing_[{e.node, e.incarnation}].push_back(std::move(e.message));
  }
  void Do(CloseNode& e) {
    Flush();
    agents_.CloseStream(e.node, e.incarnation, e.cut);
  }
  void Do(FinishJob& e) {
    Flush();
    records_->Do(e);
  }
  template <typename Record>
  void Do(Record& e) {
    records_->Do(e);
  }

  // An environment has a hundred entries, and a job thousands of nodes: it is serialised once, and
  // goes out as the field that it is, instead of being copied entry by entry for each node.
  void AddSpec(v1::StartWorkers& start) {
    if (spec_bytes_.empty()) spec_bytes_ = state_.spec.SerializeAsString();
    start.GetReflection()->MutableUnknownFields(&start)->AddLengthDelimited(
        v1::StartWorkers::kSpecFieldNumber, spec_bytes_);
  }

  // Writes and shows what has happened, then sends what is to be said: nobody is told what is not
  // written down. Once for all that one turn of the loop has dealt with.
  void Flush() {
    records_->Flush();
    for (auto& [node, messages] : std::exchange(outgoing_, {})) {
      agents_.Send(node.first, node.second, std::move(messages));
    }
  }

  void TellEnd(const Outcome& outcome) {
    feed_.End();
    {
      std::lock_guard lock(end_mutex_);
      outcome_ = outcome;
      ended_ = true;
    }
    end_changed_.notify_all();
  }

  struct Posted {
    Event event;
    Ticket ticket;
  };

  ServerOptions options_;
  LocalCalls local_calls_;
  EventFeed feed_;
  Mailbox<Posted> mailbox_;
  AgentService agents_;
  CoordinatorServiceImpl coordinator_service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<net::FrontDoor> door_;  // none without a listener
  int port_ = 0;

  std::mutex submit_mutex_;
  bool submitted_ = false;

  // Owned by the loop thread once it runs.
  State state_;
  std::unique_ptr<JobRecords> records_;
  std::string spec_bytes_;  // of state_.spec, once it is sent
  // What one turn has brought up (Flush): messages by node and incarnation.
  std::map<std::pair<std::string, std::string>, std::vector<v1::CoordinatorMessage>> outgoing_;

  std::mutex end_mutex_;
  std::condition_variable end_changed_;
  bool ended_ = false;
  Outcome outcome_;

  std::thread loop_thread_;
};

CoordinatorServer::CoordinatorServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorServer::~CoordinatorServer() = default;

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(ServerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  absl::Status status = impl->Start();
  if (!status.ok()) return status;
  return std::unique_ptr<CoordinatorServer>(new CoordinatorServer(std::move(impl)));
}

std::shared_ptr<grpc::Channel> CoordinatorServer::InProcessChannel() {
  return impl_->InProcessChannel();
}
int CoordinatorServer::port() const {
  return impl_->port();
}
Outcome CoordinatorServer::WaitForEnd() {
  return impl_->WaitForEnd();
}

}  // namespace ddprun::coordinator
