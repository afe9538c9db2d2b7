// The coordinator's door: who is let in, who is not, and that both sides are told why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "ddprun/v1/coordinator.grpc.pb.h"
#include "launcher/net/credentials.h"
#include "launcher/net/first_bytes.h"
#include "launcher/net/limits.h"
#include "launcher/net/proof.h"
#include "tests/process/door_harness.h"
#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Kind = v1::Refusal;

// A node with the secret is let in, so the door still does its work.
void ExpectOpen(const Door& door, const std::string& node = "honest") {
  FakeAgent agent(door.address(), kSecret);
  const v1::CoordinatorMessage answer = agent.Attach(FakeAgent::MakeHello(node));
  EXPECT_TRUE(answer.has_welcome()) << answer.ShortDebugString();
}

void ExpectRefusal(const v1::CoordinatorMessage& answer, v1::Refusal::Kind kind,
                   const std::string& text) {
  EXPECT_EQ(answer.refusal().kind(), kind) << answer.ShortDebugString();
  EXPECT_THAT(answer.refusal().reason(), HasSubstr(text));
}

TEST(Handshake, BothSidesProveTheSecret) {
  Door door;
  FakeAgent agent(door.address(), kSecret);
  const v1::Hello hello = FakeAgent::MakeHello();
  agent.Connect();
  ASSERT_TRUE(agent.SendHello(hello));
  const auto challenge = agent.Read();
  ASSERT_TRUE(challenge && challenge->has_challenge());
  v1::AgentMessage answer;
  *answer.mutable_answer() = agent.AnswerTo(hello, challenge->challenge());
  agent.Send(answer);
  const auto welcome = agent.Read();
  ASSERT_TRUE(welcome && welcome->has_welcome());
  EXPECT_EQ(
      welcome->welcome().proof(),
      net::CoordinatorProof(kSecret, {"job1", hello.node(), hello.incarnation(), hello.nonce(),
                                      challenge->challenge().nonce(), hello.time_ns()}));
  EXPECT_TRUE(door.WaitFor("node_joined"));
}

TEST(Handshake, AWrongOrMissingSecretIsRefusedOnBothSides) {
  Door door;
  for (const auto& [secret, text] : std::vector<std::pair<std::string, std::string>>{
           {"wrong horse battery", "does not know the secret"}, {"", "has no secret"}}) {
    FakeAgent agent(door.address(), secret);
    ExpectRefusal(agent.Attach(FakeAgent::MakeHello("bad")), Kind::SECRET, text);
    EXPECT_TRUE(agent.Finish().ok());
  }
  const auto event = door.WaitFor("join_refused", "secret");
  ASSERT_TRUE(event);
  EXPECT_EQ((*event)["node"], "bad");
  EXPECT_THAT((*event)["peer"].get<std::string>(), HasSubstr("127.0.0.1:"));
  for (const auto& told : door.Events()) EXPECT_NE(told["event"], "node_joined");
  ExpectOpen(door);
}

TEST(Handshake, AReplayedAnswerIsRefused) {
  Door door;
  FakeAgent agent(door.address(), kSecret);
  const v1::Hello hello = FakeAgent::MakeHello();
  agent.Connect();
  agent.SendHello(hello);
  const auto first = agent.Read();
  ASSERT_TRUE(first && first->has_challenge());
  v1::AgentMessage heard;
  *heard.mutable_answer() = agent.AnswerTo(hello, first->challenge());
  agent.Send(heard);
  ASSERT_TRUE(agent.Read()->has_welcome());
  // Somebody who listened says the same again.
  FakeAgent thief(door.address(), "");
  thief.Connect();
  thief.SendHello(hello);
  const auto second = thief.Read();
  ASSERT_TRUE(second && second->has_challenge());
  EXPECT_NE(second->challenge().nonce(), first->challenge().nonce());
  thief.Send(heard);
  ExpectRefusal(thief.Read().value_or(v1::CoordinatorMessage()), Kind::SECRET, "does not know");
}

TEST(Handshake, AnotherJobAClockThatIsOffAndBadNamesAreRefused) {
  Door door;
  FakeAgent agent(door.address(), kSecret);
  v1::Hello hello = FakeAgent::MakeHello();
  hello.set_job_id("job2");
  ExpectRefusal(agent.Attach(hello), Kind::JOB, "runs job job1, not job2");
  for (int64_t hours : {-1, 1}) {
    hello = FakeAgent::MakeHello();
    hello.set_time_ns(hello.time_ns() + hours * 3'600'000'000'000);
    ExpectRefusal(agent.Attach(hello), Kind::CLOCK, hours < 0 ? "behind" : "ahead of");
  }
  hello.set_time_ns(std::numeric_limits<int64_t>::min());
  ExpectRefusal(agent.Attach(hello), Kind::CLOCK, "no time");
  for (const std::string& name :
       {std::string(), std::string("\x1b[2Jnode"), std::string("a b"), std::string(65, 'x')}) {
    const v1::CoordinatorMessage answer = agent.Attach(FakeAgent::MakeHello(name));
    ExpectRefusal(answer, Kind::NAME, "cannot be a node's name");
    EXPECT_THAT(answer.refusal().reason(), Not(HasSubstr("\x1b")));
  }
  hello = FakeAgent::MakeHello();
  hello.set_address("10.0.0.1\n");
  ExpectRefusal(agent.Attach(hello), Kind::MALFORMED, "address");
  hello = FakeAgent::MakeHello();
  hello.set_nonce("short");
  ExpectRefusal(agent.Attach(hello), Kind::MALFORMED, "nonce");
  for (const char* kind : {"job", "clock", "name", "malformed"}) {
    EXPECT_TRUE(door.WaitFor("join_refused", kind)) << kind;
  }
  ExpectOpen(door);
}

TEST(Handshake, AClockThatIsSetWhileTheJobRunsCostsNoNode) {
  Door door;
  FakeAgent agent(door.address(), kSecret);
  v1::Hello hello = FakeAgent::MakeHello();
  ASSERT_TRUE(agent.Attach(hello).has_welcome());
  hello.set_time_ns(hello.time_ns() + 3'600'000'000'000);
  EXPECT_TRUE(agent.Attach(hello).has_welcome());
}

TEST(Handshake, NothingIsTakenBeforeIt) {
  Door door;
  FakeAgent agent(door.address(), kSecret);
  v1::AgentMessage early;
  early.mutable_worker_exited()->set_generation(1);
  agent.Connect();
  agent.Send(early);
  ExpectRefusal(agent.Read().value_or(v1::CoordinatorMessage()), Kind::MALFORMED, "no Hello");
  agent.Connect();
  agent.SendHello(FakeAgent::MakeHello());
  ASSERT_TRUE(agent.Read()->has_challenge());
  agent.Send(early);
  ExpectRefusal(agent.Read().value_or(v1::CoordinatorMessage()), Kind::MALFORMED, "no Answer");
  ExpectOpen(door);
}

TEST(Handshake, TwoNodesOfOneNameAreTold) {
  Door door;
  FakeAgent first(door.address(), kSecret);
  ASSERT_TRUE(first.Attach(FakeAgent::MakeHello("twin")).has_welcome());
  FakeAgent second(door.address(), kSecret);
  v1::Hello hello = FakeAgent::MakeHello("twin");
  hello.set_incarnation("another");
  const v1::CoordinatorMessage answer = second.Attach(hello);
  ASSERT_TRUE(answer.has_refusal());
  EXPECT_THAT(answer.refusal().reason(), HasSubstr("twin"));
}

TEST(Handshake, AMessageOverItsBoundEndsItsStreamAlone) {
  Door door;
  v1::Hello large = FakeAgent::MakeHello();
  for (int i = 0; i < 60000; ++i) large.add_running()->set_generation(1'000'000 + i);
  FakeAgent stranger(door.address(), kSecret);
  ExpectRefusal(stranger.Attach(large), Kind::LIMIT, "bytes");
  FakeAgent agent(door.address(), kSecret);
  ASSERT_TRUE(agent.Attach(FakeAgent::MakeHello()).has_welcome());
  v1::AgentMessage huge;
  huge.mutable_publish()->set_value(std::string(net::kMessageBytesMax + 1000, 'x'));
  agent.Send(huge);
  while (agent.Read()) continue;
  EXPECT_EQ(agent.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(door.WaitFor("join_refused", "limit"));
  ExpectOpen(door);
}

TEST(Handshake, OfAStaleGenerationNothingIsTaken) {
  Door door;
  FakeAgent agent(door.address(), kSecret);
  ASSERT_TRUE(agent.Attach(FakeAgent::MakeHello()).has_welcome());
  ASSERT_TRUE(door.WaitFor("generation_started"));
  v1::AgentMessage message;
  message.set_sequence(1);
  message.mutable_worker_exited()->set_generation(99);
  message.mutable_worker_exited()->set_exit_code(1);
  agent.Send(message);
  v1::AgentMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_sequence(1);
  agent.Send(heartbeat);
  // Handled in order: once the heartbeat is answered, the other one has been seen.
  while (auto answer = agent.Read()) {
    if (answer->has_heartbeat_answer()) break;
  }
  for (const auto& event : door.Events()) EXPECT_NE(event["event"], "worker_exited");
}

TEST(Door, TheJobIsControlledFromItsOwnProcessOnly) {
  Door door;
  auto stub = v1::CoordinatorService::NewStub(net::MakeChannel(door.address(), {}));
  grpc::ClientContext submit, control, watch;
  v1::SubmitResponse submitted;
  v1::ControlResponse controlled;
  v1::ControlRequest kill;
  kill.set_action(v1::ControlRequest::KILL);
  control.AddMetadata("ddprun-local", std::string(64, '0'));
  EXPECT_EQ(stub->Submit(&submit, {}, &submitted).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(stub->Control(&control, kill, &controlled).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  v1::EventRecord record;
  auto reader = stub->Watch(&watch, {});
  EXPECT_FALSE(reader->Read(&record));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST(Door, BytesThatAreNotOursAreAnsweredAndCounted) {
  Door door;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(1 + random() % 3000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (net::Recognise(bytes) != net::Speech::kOther) continue;
    EXPECT_EQ(Exchange(door.port(), bytes), "");
  }
  EXPECT_THAT(Exchange(door.port(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
              HasSubstr("400 Bad Request"));
  // A client that speaks TLS.
  const std::string tls("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", 10);
  EXPECT_THAT(net::GoodbyeOf(Exchange(door.port(), tls)), HasSubstr("plain text"));
  EXPECT_TRUE(door.WaitFor("join_refused", "malformed"));
  EXPECT_TRUE(door.WaitFor("join_refused", "tls"));
  ExpectOpen(door);
}

// The preface, and then anything: gRPC's to refuse.
TEST(Door, RandomFramesDoNotDisturb) {
  Door door;
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    std::string bytes(net::kHttp2Preface);
    bytes += std::string("\0\0\0\4\0\0\0\0\0", 9);
    for (size_t n = random() % 500; n > 0; --n) bytes.push_back(static_cast<char>(random()));
    const int fd = ConnectRaw(door.port());
    ASSERT_GE(fd, 0);
    EXPECT_GT(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    close(fd);
  }
  ExpectOpen(door);
}

TEST(Door, MoreStrangersThanItsBoundMakeRoomForNodes) {
  Door door;
  std::vector<int> strangers;
  for (size_t i = 0; i < net::kStrangersPerPeerMax + 50; ++i) {
    const int fd = ConnectRaw(door.port());
    if (fd < 0) break;  // this process has few descriptors
    strangers.push_back(fd);
  }
  ExpectOpen(door);
  // The oldest was cut.
  char byte = 0;
  EXPECT_LE(recv(strangers.front(), &byte, 1, 0), 0);
  EXPECT_TRUE(door.WaitFor("join_refused", "limit"));
  for (int fd : strangers) close(fd);
}

TEST(Door, ItsPortIsNobodyElses) {
  Door door;
  for (const std::string& host : {std::string("127.0.0.1"), std::string("[::]")}) {
    coordinator::ServerOptions second;
    second.listen_address = host + ":" + std::to_string(door.port());
    const auto started = coordinator::CoordinatorServer::Start(second);
    ASSERT_FALSE(started.ok()) << host;
    EXPECT_EQ(started.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(started.status().message()), HasSubstr("is it in use?"));
  }
}

TEST(Door, BothFamiliesAreServed) {
  Door::Options options;
  options.listen = "[::]:0";
  Door door(options);
  for (const char* host : {"127.0.0.1:", "[::1]:"}) {
    FakeAgent agent(host + std::to_string(door.port()), kSecret);
    v1::Hello hello = FakeAgent::MakeHello(std::string("n") + std::to_string(strlen(host)));
    EXPECT_TRUE(agent.Attach(hello).has_welcome()) << host;
  }
}

TEST(SharedRunFolder, IsProvenByWhatStandsInIt) {
  Door::Options options;
  options.change = [](v1::JobSpec* spec) {
    spec->set_needs_shared_run_dir(true);
    spec->set_nodes_max(2);
  };
  Door door(options);
  FakeAgent agent(door.address(), kSecret);
  ExpectRefusal(agent.Attach(FakeAgent::MakeHello("elsewhere")), Kind::RUN_FOLDER,
                "the run folder is not shared: node elsewhere does not see " + door.run_dir());
  EXPECT_TRUE(door.WaitFor("join_refused", "run_folder"));
  const v1::Hello hello = FakeAgent::MakeHello("here");
  agent.Connect();
  agent.SendHello(hello);
  const auto challenge = agent.Read();
  ASSERT_TRUE(challenge && challenge->has_challenge());
  const std::string path = challenge->challenge().shared_file();
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  v1::AgentMessage message;
  *message.mutable_answer() = agent.AnswerTo(hello, challenge->challenge());
  message.mutable_answer()->set_shared_value(ReadText(path));
  agent.Send(message);
  EXPECT_TRUE(agent.Read()->has_welcome());
}

}  // namespace
}  // namespace ddprun::testing
