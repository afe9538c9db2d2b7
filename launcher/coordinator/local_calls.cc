#include "launcher/coordinator/local_calls.h"

#include <grpcpp/support/client_interceptor.h>

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "launcher/net/proof.h"

namespace ddprun::coordinator {
namespace {

constexpr char kKey[] = "ddprun-local";

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

class AddToken final : public grpc::experimental::Interceptor {
 public:
  explicit AddToken(std::string token) : token_(std::move(token)) {}
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kKey, token_);
    }
    methods->Proceed();
  }

 private:
  std::string token_;
};

class AddTokenFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit AddTokenFactory(std::string token) : token_(std::move(token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo* /*info*/) override {
    return new AddToken(token_);
  }

 private:
  std::string token_;
};

}  // namespace

LocalCalls::LocalCalls() : token_(absl::BytesToHexString(net::MakeNonce())) {}

std::shared_ptr<grpc::Channel> LocalCalls::ChannelTo(grpc::Server& server) const {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<AddTokenFactory>(token_));
  return server.experimental().InProcessChannelWithInterceptors({}, std::move(creators));
}

bool LocalCalls::IsLocal(const grpc::ServerContext& context) const {
  const auto found = context.client_metadata().find(kKey);
  return found != context.client_metadata().end() &&
         net::SameProof(absl::string_view(found->second.data(), found->second.size()), token_);
}

}  // namespace ddprun::coordinator
