#include "launcher/coordinator/server.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/boot_id.h"
#include "common/files.h"
#include "common/mailbox.h"
#include "google/protobuf/util/json_util.h"
#include "launcher/coordinator/checkpoint_store.h"
#include "launcher/coordinator/hang_report.h"
#include "launcher/coordinator/hooks.h"
#include "launcher/coordinator/local_calls.h"
#include "launcher/coordinator/report.h"
#include "launcher/coordinator/run_folder.h"
#include "launcher/coordinator/services.h"
#include "launcher/net/credentials.h"
#include "launcher/net/front_door.h"
#include "launcher/net/limits.h"
#include "launcher/net/peer.h"
#include "launcher/store/store.h"

namespace ddprun::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// So that what is due by time is not put off for long, however much comes in.
constexpr int kEventsPerTurn = 512;

int64_t MonotonicNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double RealSeconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(since).count()) /
         1e6;
}

std::string RandomToken() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

Json JobJson(const v1::JobSpec& spec, const std::string& version, const std::string& facts) {
  std::string text;
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  // The environment may hold secrets of the user; it is not written down.
  v1::JobSpec shown = spec;
  shown.clear_environment();
  shown.clear_train_config_json();
  if (!google::protobuf::util::MessageToJsonString(shown, &text, print).ok()) text = "{}";
  Json job = Json::parse(text, nullptr, false);
  job["ddprun_version"] = version;
  if (!spec.train_config_json().empty()) {
    job["train"] = Json::parse(spec.train_config_json(), nullptr, false);
  }
  Json more = Json::parse(facts, nullptr, false);
  if (more.is_object()) job.update(more);
  return job;
}

}  // namespace

class CoordinatorServer::Impl {
 public:
  explicit Impl(ServerOptions options)
      : options_(std::move(options)),
        agent_service_(streams_, {[this](Event event, net::Budget::Ticket ticket) {
                                    Post(std::move(event), std::move(ticket));
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
    if (listener) {
      acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          net::ServerCredentialsOf(options_.security));
    }
    builder.RegisterService(&agent_service_);
    builder.RegisterService(&coordinator_service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC does not start");
    if (listener) OpenDoor(std::move(*listener));
    return absl::OkStatus();
  }

  ~Impl() {
    if (door_ != nullptr) door_->Stop();
    mailbox_.Close();
    io_.Close();
    if (loop_thread_.joinable()) loop_thread_.join();
    while (mailbox_.TryTake()) continue;  // readers wait until what they sent is handled
    agent_service_.Close();
    if (io_thread_.joinable()) io_thread_.join();
    hooks_.reset();
    feed_.End();
    streams_.CloseAll();
    if (server_ != nullptr) {
      // Streams that do not end by themselves are cut off; many need longer to hear of the end.
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1) +
                        std::chrono::milliseconds(2 * streams_.count()));
      server_->Wait();
    }
  }

  grpc::Status Submit(const v1::JobSpec& spec) {
    std::lock_guard lock(submit_mutex_);
    if (submitted_) {
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "a job runs here already");
    }
    absl::Status status = Prepare(spec);
    if (!status.ok()) {
      return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                          std::string(status.message()));
    }
    submitted_ = true;
    JobSubmitted event{spec, RandomToken(), options_.version, {}};
    if (spec.resume()) event.past = folder_->ReadPast();
    Perform(Step(state_, event, MonotonicNs()));
    Flush();
    agent_service_.Open({spec.job_id(), options_.security.secret, shared_file_});
    io_thread_ = std::thread([this] { IoLoop(); });
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
  absl::Status Prepare(const v1::JobSpec& spec) {
    absl::StatusOr<std::unique_ptr<RunFolder>> folder = RunFolder::Open(spec.run_dir());
    if (!folder.ok()) return folder.status();
    folder_ = std::move(*folder);
    // Looked at again under the lock: another job may have come and gone since the command line
    // looked.
    if (!spec.resume() && PosixFileSystem().FileBytes(JoinPath(spec.run_dir(), "job.json")).ok()) {
      return absl::FailedPreconditionError(absl::StrCat("run folder ", spec.run_dir(),
                                                        " holds a job already: go on with it by "
                                                        "--resume, or choose another --run-dir"));
    }
    absl::Status status =
        folder_->WriteJob(JobJson(spec, options_.version, options_.job_facts_json));
    if (!status.ok()) return status;
    folder_->MakeReserve();
    if (options_.point_latest) folder_->PointLatestHere();
    checkpoints_ = std::make_unique<CheckpointStore>(PosixFileSystem(), spec.run_dir(),
                                                     spec.job_id(), spec.checkpoints_kept());
    store_ = MakeMemoryStore();
    if (!spec.needs_shared_run_dir() || spec.nodes_max() <= 1) return absl::OkStatus();
    absl::StatusOr<net::SharedFile> shared = net::WriteSharedFile(spec.run_dir());
    if (shared.ok()) shared_file_ = *std::move(shared);
    return shared.status();
  }

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

  void Post(Event event, net::Budget::Ticket ticket = nullptr) {
    mailbox_.Post({std::move(event), std::move(ticket)});
  }

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
    if (std::holds_alternative<HookEnded>(event)) OnHookEnded(std::get<HookEnded>(event));
  }

  void Perform(std::vector<Effect> effects) {
    for (Effect& effect : effects) {
      std::visit([this](auto& e) { Do(e); }, effect);
    }
  }

  void Do(SendToNode& e) {
    if (e.message.has_heartbeat_answer()) {
      e.message.mutable_heartbeat_answer()->set_sent_ns(static_cast<int64_t>(RealSeconds() * 1e9));
    }
    if (e.message.has_welcome()) e.message.mutable_welcome()->set_boot_id(BootId());
    outgoing_[{e.node, e.incarnation}].push_back(std::move(e.message));
  }
  void Do(CloseNode& e) {
    Flush();
    streams_.Close(e.node, e.incarnation, e.cut);
  }
  void Do(RecordEvent& e) { lines_.push_back(RunFolder::EventLine(e.event, RealSeconds())); }

  // Writes and shows what has happened, then sends what is to be said: nobody is told what is not
  // written down. Once for all that one turn of the loop has dealt with.
  void Flush() {
    if (!lines_.empty()) WriteEvents();
    for (auto& [node, messages] : std::exchange(outgoing_, {})) {
      streams_.Send(node.first, node.second, std::move(messages));
    }
  }

  void WriteEvents() {
    if (state_.phase == Phase::kFinished) folder_->ReleaseReserve();
    absl::Status status = folder_->AppendEvents(lines_);
    if (!status.ok() && !event_error_told_) {
      event_error_told_ = true;
      std::fprintf(stderr, "ddprun: %s; the job goes on, later events may be missing there\n",
                   std::string(status.message()).c_str());
    }
    if (folder_->TookReserve()) {
      std::fprintf(stderr,
                   "ddprun: the disk of %s is full: events.jsonl goes on in the room that was kept "
                   "free for it; the job goes on, its logs may be incomplete\n",
                   folder_->path().c_str());
    }
    feed_.Append(std::exchange(lines_, {}));
  }
  void Do(PersistGeneration& e) {
    absl::StatusOr<uint64_t> revision =
        store_->CompareAndSet("generation", generation_revision_, absl::StrCat(e.generation));
    // Another coordinator of this job has taken over: nothing more may be started from here.
    if (!revision.ok()) std::abort();
    generation_revision_ = *revision;
  }
  void Do(ChooseResume& e) {
    io_.Post([this, generation = e.generation] { Post(checkpoints_->ChooseResume(generation)); });
  }
  void Do(CommitCheckpoint& e) {
    io_.Post([this, commit = e] {
      absl::StatusOr<std::string> path = checkpoints_->Commit(commit);
      Post(CheckpointStored{commit.generation, commit.step, path.ok(), path.ok() ? *path : "",
                            path.ok() ? "" : std::string(path.status().message())});
    });
  }
  void Do(DropStaging& e) {
    io_.Post([this, e] { checkpoints_->DropStaging(e.generation, e.step); });
  }
  void Do(WriteHangReport& e) {
    const std::string path = JoinPath(state_.spec.run_dir(), e.name);
    absl::Status status = RunFolder::WriteReport(path + ".json", e.report);
    if (status.ok()) {
      status = ReplaceFile(PosixFileSystem(), path + ".txt", HangReportText(e.report));
    }
    if (!status.ok()) {
      std::fprintf(stderr, "ddprun: %s\n", std::string(status.message()).c_str());
    }
  }
  void Do(RunHook& e) {
    Hook hook = MakeHook("on_failure", state_.spec.supervision().on_failure());
    hook.report_path =
        JoinPath(state_.spec.run_dir(), absl::StrCat("reports/g", e.failure.generation, ".json"));
    hook.report = MakeFailureReport(state_, e);
    Hooks().Run(std::move(hook));
  }
  void Do(FinishJob& e) {
    Flush();
    folder_->ReleaseReserve();
    if (!shared_file_.path.empty()) unlink(shared_file_.path.c_str());
    absl::Status status = folder_->WriteResult(MakeResult(state_, e.outcome));
    if (!status.ok()) {
      std::fprintf(stderr, "ddprun: %s\n", std::string(status.message()).c_str());
    }
    outcome_ = e.outcome;
    const std::string& command = state_.spec.supervision().on_finish();
    if (command.empty() && hooks_ == nullptr) return TellEnd();
    // The end waits for all hooks; the last one, which may have no command, is the sign.
    Hook hook = MakeHook("on_finish", command);
    hook.report_path = JoinPath(state_.spec.run_dir(), "result.json");
    Hooks().RunLast(std::move(hook));
  }
  void OnHookEnded(const HookEnded& e) {
    if (!e.ok) {
      std::fprintf(stderr, "ddprun: the --%s command failed: %s; the job is not affected\n",
                   e.hook == "on_finish" ? "on-finish" : "on-failure", e.reason.c_str());
    }
    if (e.hook == "on_finish") TellEnd();
  }
  void TellEnd() {
    feed_.End();
    {
      std::lock_guard lock(end_mutex_);
      ended_ = true;
    }
    end_changed_.notify_all();
  }
  HookRunner& Hooks() {
    if (hooks_ == nullptr) {
      hooks_ = std::make_unique<HookRunner>([this](HookEnded e) { Post(std::move(e)); });
    }
    return *hooks_;
  }
  Hook MakeHook(const std::string& name, const std::string& command) {
    const std::string& run_dir = state_.spec.run_dir();
    Hook hook{.name = name, .command = command, .generation = state_.generation.number};
    hook.log_path = JoinPath(run_dir, "logs/hooks.log");
    hook.environment = {{"DDPRUN_JOB_ID", state_.spec.job_id()}, {"DDPRUN_RUN_DIR", run_dir}};
    return hook;
  }

  void IoLoop() {
    while (true) {
      std::optional<std::function<void()>> task = io_.Take(std::nullopt);
      if (!task) return;
      (*task)();
    }
  }

  struct Posted {
    Event event;
    net::Budget::Ticket ticket;  // its sender may send more once it is dropped
  };

  ServerOptions options_;
  LocalCalls local_calls_;
  AgentStreams streams_;
  EventFeed feed_;
  Mailbox<Posted> mailbox_;
  Mailbox<std::function<void()>> io_;
  AgentServiceImpl agent_service_;
  CoordinatorServiceImpl coordinator_service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<net::FrontDoor> door_;  // none without a listener
  int port_ = 0;
  net::SharedFile shared_file_;

  std::mutex submit_mutex_;
  bool submitted_ = false;

  // Owned by the loop thread once it runs.
  State state_;
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<Store> store_;
  uint64_t generation_revision_ = 0;
  bool event_error_told_ = false;
  // What one turn has brought up (Flush): lines of events.jsonl; messages by node and incarnation.
  std::vector<std::string> lines_;
  std::map<std::pair<std::string, std::string>, std::vector<v1::CoordinatorMessage>> outgoing_;
  std::unique_ptr<CheckpointStore> checkpoints_;  // used by the I/O thread

  std::unique_ptr<HookRunner> hooks_;  // none before the first hook

  std::mutex end_mutex_;
  std::condition_variable end_changed_;
  bool ended_ = false;
  Outcome outcome_;

  std::thread loop_thread_;
  std::thread io_thread_;
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
