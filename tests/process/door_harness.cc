#include "tests/process/door_harness.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ddprun/v1/coordinator.grpc.pb.h"
#include "launcher/net/credentials.h"
#include "launcher/net/proof.h"
#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{20};

void Run(const std::string& command) {
  if (std::system((command + " >/dev/null 2>&1").c_str()) != 0) {
    std::fprintf(stderr, "failed: %s\n", command.c_str());
    std::abort();
  }
}

}  // namespace

Folder::Folder() {
  std::string name = (fs::temp_directory_path() / "ddprun-door-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Door::Door() : Door(Options()) {}

Door::Door(const Options& options) {
  run_dir_ = folder_.path() + "/run";
  fs::create_directories(run_dir_);
  coordinator::ServerOptions server;
  server.listen_address = options.listen;
  server.security = options.security;
  server.version = DDPRUN_VERSION;
  auto started = coordinator::CoordinatorServer::Start(server);
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", std::string(started.status().message()).c_str());
    std::abort();
  }
  server_ = std::move(*started);
  auto stub = v1::CoordinatorService::NewStub(server_->InProcessChannel());
  grpc::ClientContext context;
  v1::SubmitRequest request;
  v1::JobSpec* spec = request.mutable_spec();
  spec->set_job_id("job1");
  spec->set_run_dir(run_dir_);
  spec->add_program("/bin/sleep");
  spec->add_program("100");
  spec->set_processes_per_node(1);
  spec->set_nodes_min(1);
  spec->set_nodes_max(1);
  spec->set_join_timeout_seconds(60);
  spec->set_grace_seconds(5);
  spec->set_lease_seconds(3);
  options.change(spec);
  v1::SubmitResponse response;
  const grpc::Status status = stub->Submit(&context, request, &response);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.error_message().c_str());
    std::abort();
  }
}

Door::~Door() = default;

std::string Door::address() const {
  return "127.0.0.1:" + std::to_string(server_->port());
}

std::vector<Json> Door::Events() const {
  std::vector<Json> events;
  std::istringstream lines(ReadText(run_dir_ + "/events.jsonl"));
  std::string line;
  while (std::getline(lines, line)) {
    Json event = Json::parse(line, nullptr, false);
    if (event.is_object()) events.push_back(std::move(event));
  }
  return events;
}

std::optional<Json> Door::WaitFor(const std::string& name, const std::string& kind) {
  std::optional<Json> found;
  WaitUntil(
      [&] {
        for (const Json& event : Events()) {
          if (event["event"] != name) continue;
          if (!kind.empty() && event.value("kind", "") != kind) continue;
          found = event;
          return true;
        }
        return false;
      },
      20);
  return found;
}

FakeAgent::FakeAgent(const std::string& address, std::string secret)
    : FakeAgent(net::MakeChannel(address, {}), std::move(secret)) {}

FakeAgent::FakeAgent(std::shared_ptr<grpc::Channel> channel, std::string secret)
    : secret_(std::move(secret)),
      channel_(std::move(channel)),
      stub_(v1::AgentService::NewStub(channel_)) {}

FakeAgent::~FakeAgent() {
  if (stream_ == nullptr) return;
  context_->TryCancel();
  stream_->Finish();
}

v1::Hello FakeAgent::MakeHello(const std::string& node) {
  v1::Hello hello;
  hello.set_protocol_version(1);
  hello.set_node(node);
  hello.set_boot_id("boot");
  hello.set_incarnation("abcdef0123456789");
  hello.set_nonce(net::MakeNonce());
  hello.set_time_ns(std::chrono::system_clock::now().time_since_epoch() /
                    std::chrono::nanoseconds(1));
  hello.set_slots(1);
  hello.set_node_rank_wanted(-1);
  hello.set_address("127.0.0.1");
  hello.set_version(DDPRUN_VERSION);
  return hello;
}

void FakeAgent::Connect() {
  if (stream_ != nullptr) {
    context_->TryCancel();
    stream_->Finish();
  }
  read_.clear();
  context_ = std::make_unique<grpc::ClientContext>();
  context_->set_deadline(std::chrono::system_clock::now() + kPatience);
  context_->set_wait_for_ready(true);
  stream_ = stub_->Attach(context_.get());
}

bool FakeAgent::Send(v1::AgentMessage message) {
  v1::AgentBatch batch;
  *batch.add_messages() = std::move(message);
  return stream_->Write(batch);
}

bool FakeAgent::SendHello(const v1::Hello& hello) {
  v1::AgentMessage message;
  *message.mutable_hello() = hello;
  return Send(message);
}

std::optional<v1::CoordinatorMessage> FakeAgent::Read() {
  while (read_.empty()) {
    v1::CoordinatorBatch batch;
    if (!stream_->Read(&batch)) return std::nullopt;
    read_.assign(batch.messages().begin(), batch.messages().end());
  }
  v1::CoordinatorMessage message = read_.front();
  read_.erase(read_.begin());
  return message;
}

grpc::Status FakeAgent::Finish() {
  const grpc::Status status = stream_->Finish();
  stream_.reset();
  return status;
}

v1::Answer FakeAgent::AnswerTo(const v1::Hello& hello, const v1::Challenge& challenge) const {
  v1::Answer answer;
  answer.set_proof(net::AgentProof(secret_, {challenge.job_id(), hello.node(), hello.incarnation(),
                                             hello.nonce(), challenge.nonce(), hello.time_ns()}));
  return answer;
}

v1::CoordinatorMessage FakeAgent::Attach(const v1::Hello& hello) {
  Connect();
  SendHello(hello);
  std::optional<v1::CoordinatorMessage> first = Read();
  if (!first || !first->has_challenge()) return first.value_or(v1::CoordinatorMessage());
  v1::AgentMessage message;
  *message.mutable_answer() = AnswerTo(hello, first->challenge());
  Send(message);
  return Read().value_or(v1::CoordinatorMessage());
}

int ConnectRaw(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const timeval patience = {kPatience.count(), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

std::string Exchange(int port, const std::string& bytes) {
  const int fd = ConnectRaw(port);
  if (fd < 0) return "";
  std::string answer;
  if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) {
    char buffer[4096];
    for (ssize_t got = 0; (got = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(got));
    }
  }
  close(fd);
  return answer;
}

Authority::Authority(const Folder& folder, std::string name) : base_(folder.path() + "/" + name) {
  Run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" +
      name + " -keyout " + base_ + ".key -out " + base_ + ".pem");
}

Authority::Pair Authority::Sign(const std::string& name, const std::string& alternative_names,
                                bool expired) const {
  const std::string own = base_ + "-" + name;
  std::ofstream(own + ".ext") << "subjectAltName=" << alternative_names << "\n";
  Run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name +
      " -keyout " + own + ".key -out " + own + ".csr");
  // A certificate of no days has expired when it is made.
  Run("openssl x509 -req -in " + own + ".csr -CA " + base_ + ".pem -CAkey " + base_ +
      ".key -CAcreateserial -days " + (expired ? "0" : "2") + " -extfile " + own + ".ext -out " +
      own + ".pem");
  fs::permissions(own + ".key", fs::perms::owner_read | fs::perms::owner_write);
  return {own + ".pem", own + ".key"};
}

}  // namespace ddprun::testing
