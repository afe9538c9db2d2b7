// CoordinatorServer: the shell around the coordinator's core. One loop thread owns the state, feeds
// events and performs effects in order; one I/O thread commits and verifies checkpoints; gRPC
// callbacks only translate and post.
//
// One job per server. Life: Start → (Submit) → agents attach → … → the job ends → WaitForEnd
// returns → destructor. Threads: all public methods from any thread, except the destructor.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ddprun/v1/job.pb.h"
#include "launcher/coordinator/state.h"
#include "launcher/net/security.h"

namespace ddprun::coordinator {

struct ServerOptions {
  // "" serves only this process (in-process channel); otherwise host:port, port 0 lets the system
  // choose.
  std::string listen_address;
  net::Security security;
  std::string version;
  // Resolved facts of this run for job.json (JSON text of an object), merged with the spec.
  std::string job_facts_json;
  bool point_latest = false;  // runs/latest
};

class CoordinatorServer {
 public:
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(ServerOptions options);
  ~CoordinatorServer();

  std::shared_ptr<grpc::Channel> InProcessChannel();
  int port() const;  // 0 without a listener

  // Blocks until the job has ended and its result is written.
  Outcome WaitForEnd();

 private:
  class Impl;
  explicit CoordinatorServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::coordinator
