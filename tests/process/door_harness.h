// A coordinator in this process that listens on loopback, and strangers that speak to it by hand:
// an agent made of generated stubs, raw sockets, certificates.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/v1/agent.grpc.pb.h"
#include "launcher/coordinator/server.h"
#include "launcher/net/security.h"

namespace ddprun::testing {

inline constexpr char kSecret[] = "correct horse battery";

// A folder that is removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A server with a job that waits for a node of one worker (`sleep`, which nobody starts here).
class Door {
 public:
  struct Options {
    net::Security security{kSecret, "", "", ""};
    std::string listen = "127.0.0.1:0";
    std::function<void(v1::JobSpec*)> change = [](v1::JobSpec*) {};
  };
  Door();
  explicit Door(const Options& options);
  ~Door();

  std::string address() const;
  int port() const { return server_->port(); }
  const std::string& run_dir() const { return run_dir_; }
  std::vector<nlohmann::json> Events() const;
  // The first event of this name (and, for join_refused, kind), waiting for at most 20 s.
  std::optional<nlohmann::json> WaitFor(const std::string& event, const std::string& kind = "");
  coordinator::CoordinatorServer& server() { return *server_; }

 private:
  Folder folder_;
  std::string run_dir_;
  std::unique_ptr<coordinator::CoordinatorServer> server_;
};

// An agent by hand. Every call of it ends within 20 s.
class FakeAgent {
 public:
  FakeAgent(const std::string& address, std::string secret);
  explicit FakeAgent(std::shared_ptr<grpc::Channel> channel, std::string secret = kSecret);
  ~FakeAgent();

  static v1::Hello MakeHello(const std::string& node = "node0");
  // A new stream.
  void Connect();
  bool Send(v1::AgentMessage message);
  bool SendHello(const v1::Hello& hello);
  // The next message; nullopt: the stream is over.
  std::optional<v1::CoordinatorMessage> Read();
  grpc::Status Finish();
  // Answers a challenge with the proof.
  v1::Answer AnswerTo(const v1::Hello& hello, const v1::Challenge& challenge) const;
  // Connect, Hello, Answer: the Welcome or Refusal.
  v1::CoordinatorMessage Attach(const v1::Hello& hello);

 private:
  std::string secret_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentBatch, v1::CoordinatorBatch>> stream_;
  std::vector<v1::CoordinatorMessage> read_;
};

// A connected socket.
int ConnectRaw(int port);
// Sends the bytes and reads until the other side closes (at most 20 s).
std::string Exchange(int port, const std::string& bytes);

// Certificates by openssl: an authority, and what it signs.
class Authority {
 public:
  Authority(const Folder& folder, std::string name);
  struct Pair {
    std::string certificate;  // paths
    std::string key;
  };
  Pair Sign(const std::string& name, const std::string& alternative_names,
            bool expired = false) const;
  std::string certificate() const { return base_ + ".pem"; }

 private:
  std::string base_;
};

}  // namespace ddprun::testing
