// The agent's side of the door: what it takes from a coordinator that is none, or not its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/mailbox.h"
#include "ddprun/v1/coordinator.grpc.pb.h"
#include "launcher/agent/stream.h"
#include "launcher/net/credentials.h"
#include "launcher/net/proof.h"
#include "tests/process/door_harness.h"

namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;

// A coordinator by hand.
class FakeCoordinator final : public v1::AgentService::Service {
 public:
  explicit FakeCoordinator(std::string shared_file = "") : shared_file_(std::move(shared_file)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Attach(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::CoordinatorBatch, v1::AgentBatch>* stream) override {
    v1::AgentBatch batch;
    stream->Read(&batch);
    v1::CoordinatorBatch out;
    v1::Challenge* challenge = out.add_messages()->mutable_challenge();
    challenge->set_nonce(net::MakeNonce());
    challenge->set_job_id("job1");
    challenge->set_shared_file(shared_file_);
    stream->Write(out);
    if (stream->Read(&batch)) answers_.Post(batch.messages(0).answer());
    out.Clear();
    out.add_messages()->mutable_welcome()->set_job_id("job1");
    out.add_messages()->mutable_start_workers()->set_generation(1);
    stream->Write(out);
    while (stream->Read(&batch)) continue;
    return grpc::Status::OK;
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  v1::Answer TakeAnswer() {
    return answers_.Take(std::chrono::steady_clock::now() + std::chrono::seconds(20))
        .value_or(v1::Answer());
  }

 private:
  std::string shared_file_;
  int port_ = 0;
  Mailbox<v1::Answer> answers_;
  std::unique_ptr<grpc::Server> server_;
};

// What an agent's stream hands on, until it ends.
std::vector<v1::CoordinatorMessage> WhatAnAgentHears(const std::string& address,
                                                     const net::Security& security,
                                                     std::string* end) {
  Mailbox<v1::CoordinatorMessage> heard;
  Mailbox<std::string> ended;
  {
    agent::CoordinatorStream stream(
        {net::MakeChannel(address, security), true, address, security, true},
        [&](v1::CoordinatorMessage message) { heard.Post(std::move(message)); },
        [&](std::string reason) { ended.Post(std::move(reason)); });
    v1::AgentMessage hello;
    *hello.mutable_hello() = FakeAgent::MakeHello();
    stream.Send(hello);
    *end = ended.Take(std::chrono::steady_clock::now() + std::chrono::seconds(20))
               .value_or("it did not end");
  }
  std::vector<v1::CoordinatorMessage> messages;
  while (auto message = heard.TryTake()) messages.push_back(*message);
  return messages;
}

TEST(AgentStream, ObeysNoCoordinatorThatDoesNotKnowTheSecret) {
  FakeCoordinator fake;
  std::string end;
  const auto heard = WhatAnAgentHears(fake.address(), {kSecret, "", "", ""}, &end);
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].refusal().kind(), v1::Refusal::SECRET) << heard[0].ShortDebugString();
  EXPECT_THAT(heard[0].refusal().reason(), HasSubstr("does not know the secret of this job"));
}

TEST(AgentStream, ReadsNothingButASharedFileForAStranger) {
  Folder folder;
  const std::string name = folder.path() + "/.shared-" + std::string(64, 'a');
  std::ofstream(name) << "root:x:0:0";
  const std::string link = folder.path() + "/.shared-" + std::string(64, 'b');
  std::filesystem::create_symlink("/etc/hostname", link);
  for (const std::string& path :
       {std::string("/etc/hostname"), name, link, folder.path() + "/.shared-/../../etc/hostname"}) {
    FakeCoordinator fake(path);
    std::string end;
    WhatAnAgentHears(fake.address(), {kSecret, "", "", ""}, &end);
    const v1::Answer answer = fake.TakeAnswer();
    EXPECT_EQ(answer.shared_value(), "") << path;
    EXPECT_NE(answer.shared_error(), "") << path;
  }
}

TEST(AgentStream, SaysWhatListensThereInstead) {
  grpc::ServerBuilder builder;
  int port = 0;
  v1::CoordinatorService::Service other;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&other);
  auto server = builder.BuildAndStart();
  std::string end;
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const auto heard = WhatAnAgentHears(address, {kSecret, "", "", ""}, &end);
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].refusal().kind(), v1::Refusal::MALFORMED) << heard[0].ShortDebugString();
  EXPECT_THAT(heard[0].refusal().reason(), HasSubstr("is no ddprun coordinator"));
  server->Shutdown(std::chrono::system_clock::now());
  EXPECT_EQ(WhatAnAgentHears(address, {}, &end).size(), 0U);
  EXPECT_THAT(end, HasSubstr("no coordinator answers at " + address + ": Connection refused"));
}

}  // namespace
}  // namespace ddprun::testing
