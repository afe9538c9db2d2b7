// LocalCalls: tells calls of this process's own channel from those that came over the network.
//
// The in-process channel adds a random token to each call, which nobody else knows. Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace ddprun::coordinator {

class LocalCalls {
 public:
  LocalCalls();
  std::shared_ptr<grpc::Channel> ChannelTo(grpc::Server& server) const;
  bool IsLocal(const grpc::ServerContext& context) const;

 private:
  std::string token_;
};

}  // namespace ddprun::coordinator
