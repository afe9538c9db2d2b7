// libddprun's exchange: publish and await, against a keeper made by hand.
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <string>

#include "common/wire.h"
#include "tests/unit/client_keeper.h"

namespace ddprun {
namespace {

struct Awaited {
  int code;
  std::string bytes;
  std::string error;
};

Awaited Await(ddprun_handle* d, const char* group, const char* name, double timeout_seconds,
              size_t capacity = 64) {
  std::string buffer(capacity, '\0');
  size_t size = 0;
  Awaited result = {
      ddprun_await(d, group, name, buffer.data(), buffer.size(), &size, timeout_seconds), "", ""};
  if (result.code == 0) result.bytes = buffer.substr(0, size);
  result.error = result.code == 0 ? "" : ddprun_error(d);
  return result;
}

std::future<Awaited> AwaitInThread(ddprun_handle* d, const char* name) {
  return std::async(std::launch::async, [d, name] { return Await(d, "world", name, 10); });
}

void SendValue(FakeKeeper& keeper, const std::string& name, const std::string& bytes) {
  keeper.Send({{"TYPE", "Value"}, {"GROUP", "world"}, {"NAME", name}, {"VALUE", Base64(bytes)}});
}

TEST(ClientExchange, FirstPacketNamesProtocolAndPid) {
  FakeKeeper keeper;
  ddprun_settings settings = keeper.Settings();
  settings.socket_fd = dup(keeper.worker_fd());
  ddprun_handle* d = nullptr;
  ASSERT_EQ(ddprun_open(&settings, &d), 0);
  Packet hello = keeper.Receive();
  EXPECT_EQ(hello["TYPE"], "Hello");
  EXPECT_EQ(hello["PROTOCOL"], "1");
  EXPECT_EQ(hello["PID"], std::to_string(getpid()));
  ddprun_close(d);
}

TEST(ClientExchange, PublishSendsBytesOfAnyValue) {
  LaunchedWorker worker;
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  ASSERT_EQ(ddprun_publish(worker.handle(), "g\n1", "na\\me", bytes.data(), bytes.size()), 0);
  Packet packet = worker.keeper().Receive();
  EXPECT_EQ(packet["TYPE"], "Publish");
  EXPECT_EQ(packet["GROUP"], "g\n1");
  EXPECT_EQ(packet["NAME"], "na\\me");
  EXPECT_EQ(FromBase64(packet["VALUE"]), bytes);
}

TEST(ClientExchange, TheLargestValueGoesBothWaysAndOneByteMoreIsRefused) {
  LaunchedWorker worker;
  const std::string bytes(kDdprunValueBytesMax + 1, '\x5a');
  EXPECT_EQ(ddprun_publish(worker.handle(), "world", "big", bytes.data(), bytes.size()),
            DDPRUN_ESIZE);
  EXPECT_NE(std::string(ddprun_error(worker.handle())).find("32769 bytes"), std::string::npos);
  ASSERT_EQ(ddprun_publish(worker.handle(), "world", "big", bytes.data(), kDdprunValueBytesMax), 0);
  EXPECT_EQ(FromBase64(worker.keeper().Receive()["VALUE"]), bytes.substr(1));
  auto waiting = std::async(std::launch::async, [&worker] {
    return Await(worker.handle(), "world", "big", 10, kDdprunValueBytesMax);
  });
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Await");
  SendValue(worker.keeper(), "big", bytes.substr(1));
  EXPECT_EQ(waiting.get().bytes, bytes.substr(1));
}

TEST(ClientExchange, AwaitReturnsWhatTheLauncherSends) {
  LaunchedWorker worker;
  auto waiting = AwaitInThread(worker.handle(), "nccl");
  Packet packet = worker.keeper().Receive();
  EXPECT_EQ(packet["TYPE"], "Await");
  EXPECT_EQ(packet["GROUP"], "world");
  EXPECT_EQ(packet["NAME"], "nccl");
  SendValue(worker.keeper(), "other", "wrong");
  SendValue(worker.keeper(), "nccl", std::string("\0id", 3));
  const Awaited result = waiting.get();
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.bytes, std::string("\0id", 3));
}

TEST(ClientExchange, SeveralThreadsWaitForDifferentAndEqualNames) {
  LaunchedWorker worker;
  std::array<std::future<Awaited>, 3> waiting = {AwaitInThread(worker.handle(), "a"),
                                                 AwaitInThread(worker.handle(), "b"),
                                                 AwaitInThread(worker.handle(), "b")};
  for (size_t i = 0; i < waiting.size(); ++i) {
    EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Await");
  }
  SendValue(worker.keeper(), "b", "of b");
  SendValue(worker.keeper(), "a", "of a");
  EXPECT_EQ(waiting[0].get().bytes, "of a");
  EXPECT_EQ(waiting[1].get().bytes, "of b");
  EXPECT_EQ(waiting[2].get().bytes, "of b");
}

TEST(ClientExchange, AwaitEndsAtItsDeadlineAndALateValueHarmsNobody) {
  LaunchedWorker worker;
  const Awaited late = Await(worker.handle(), "world", "never", 0.01);
  EXPECT_EQ(late.code, DDPRUN_ETIMEOUT);
  EXPECT_EQ(late.error, "rank 0: world/never was not published within 0.01 s");
  SendValue(worker.keeper(), "never", "late");
  auto waiting = AwaitInThread(worker.handle(), "next");
  EXPECT_EQ(worker.keeper().ReceiveType("Await")["NAME"], "never");
  EXPECT_EQ(worker.keeper().ReceiveType("Await")["NAME"], "next");
  SendValue(worker.keeper(), "next", "here");
  EXPECT_EQ(waiting.get().bytes, "here");
}

TEST(ClientExchange, ABufferThatIsTooSmallTellsTheSize) {
  LaunchedWorker worker;
  auto waiting = std::async(std::launch::async,
                            [&worker] { return Await(worker.handle(), "world", "n", 10, 3); });
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Await");
  SendValue(worker.keeper(), "n", "four");
  const Awaited result = waiting.get();
  EXPECT_EQ(result.code, DDPRUN_ESIZE);
  EXPECT_EQ(result.error, "world/n has 4 bytes, the buffer 3");
}

// R1: a key of another generation is refused, and the worker hears why.
TEST(ClientExchange, ARefusalFailsTheWaiterWithTheLaunchersReason) {
  LaunchedWorker worker;
  auto waiting = AwaitInThread(worker.handle(), "old");
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Await");
  worker.keeper().Send({{"TYPE", "Refused"},
                        {"GROUP", "world"},
                        {"NAME", "old"},
                        {"REASON", "generation 2 is over"}});
  const Awaited result = waiting.get();
  EXPECT_EQ(result.code, DDPRUN_EREFUSED);
  EXPECT_EQ(result.error, "world/old was refused: generation 2 is over");
}

TEST(ClientExchange, ARefusedPublishIsToldByTheNextCallForTheKey) {
  LaunchedWorker worker;
  ASSERT_EQ(ddprun_publish(worker.handle(), "world", "id", "x", 1), 0);
  worker.keeper().Send({{"TYPE", "Refused"},
                        {"GROUP", "world"},
                        {"NAME", "id"},
                        {"REASON", "published twice with other bytes"}});
  // An answer to another key shows that the refusal has been read.
  auto other = AwaitInThread(worker.handle(), "mark");
  EXPECT_EQ(worker.keeper().ReceiveType("Await")["NAME"], "mark");
  SendValue(worker.keeper(), "mark", "");
  EXPECT_EQ(other.get().code, 0);
  const Awaited result = Await(worker.handle(), "world", "id", 10);
  EXPECT_EQ(result.code, DDPRUN_EREFUSED);
  EXPECT_EQ(result.error, "world/id was refused: published twice with other bytes");
}

TEST(ClientExchange, VoidAndUnknownPacketsAreIgnored) {
  LaunchedWorker worker;
  auto waiting = AwaitInThread(worker.handle(), "n");
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Await");
  for (const char* text : {"TYPE=Later\nX=1\n", "no lines", "KEY=1\nTYPE=Value\n", "TYPE=Value\n",
                           "TYPE=EdgeRequest\nID=one\n", "TYPE=CheckpointAt\nID=1\n", "\n"}) {
    worker.keeper().SendRaw(text);
  }
  worker.keeper().SendRaw(std::string(kDdprunPacketBytesMax + 100, 'x'));
  worker.keeper().SendRaw("TYPE=Value\nGROUP=world\nLATER=1\nNAME=n\nVALUE=aGk=\n");
  EXPECT_EQ(waiting.get().bytes, "hi");
}

TEST(ClientExchange, ArgumentsOutOfRangeAreRefusedAndNothingIsSent) {
  LaunchedWorker worker;
  ddprun_handle* const d = worker.handle();
  const std::string long_name(257, 'n');
  size_t size = 0;
  char byte = 0;
  EXPECT_EQ(ddprun_publish(d, "", "n", "x", 1), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_publish(d, "g", nullptr, "x", 1), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_publish(d, "g", long_name.c_str(), "x", 1), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_publish(d, "g", "n", nullptr, 1), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_publish(nullptr, "g", "n", "x", 1), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_await(d, "g", "n", &byte, 1, &size, -1), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_await(d, "g", "n", &byte, 1, nullptr, 1), DDPRUN_EINVAL);
  ASSERT_EQ(ddprun_ready(d), 0);
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Ready");
}

TEST(ClientExchange, EachThreadHasItsOwnError) {
  LaunchedWorker worker;
  ddprun_handle* const d = worker.handle();
  EXPECT_EQ(ddprun_publish(d, "", "n", "x", 1), DDPRUN_EINVAL);
  const std::string mine = ddprun_error(d);
  const std::string other =
      std::async(std::launch::async, [d] { return std::string(ddprun_error(d)); }).get();
  EXPECT_EQ(other, "");
  EXPECT_EQ(ddprun_error(d), mine);
}

TEST(ClientReports, AreOnePacketEach) {
  LaunchedWorker worker;
  ddprun_handle* const d = worker.handle();
  EXPECT_EQ(ddprun_fail(d, DDPRUN_FAIL_COMMUNICATION, "line 1\nline 2 \\ end"), 0);
  Packet packet = worker.keeper().Receive();
  EXPECT_EQ(packet["TYPE"], "Failed");
  EXPECT_EQ(packet["KIND"], "communication");
  EXPECT_EQ(packet["MESSAGE"], "line 1\nline 2 \\ end");
  EXPECT_EQ(ddprun_fail(d, DDPRUN_FAIL_CONFIG, "bad"), 0);
  EXPECT_EQ(worker.keeper().Receive()["KIND"], "config");
  EXPECT_EQ(ddprun_fail(d, 7, "bad"), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_result(d, "METRIC.test_accuracy", "0.88"), 0);
  EXPECT_EQ(worker.keeper().Receive()["METRIC.test_accuracy"], "0.88");
  EXPECT_EQ(ddprun_result(d, "METRIC.", "1"), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_result(d, "METRIC.a b", "1"), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_result(d, "TYPE", "Finished"), DDPRUN_EINVAL);
  EXPECT_EQ(ddprun_finish(d), 0);
  EXPECT_EQ(worker.keeper().Receive()["TYPE"], "Finished");
}

TEST(ClientReports, AnEndlessMessageIsCutBetweenCharacters) {
  LaunchedWorker worker;
  std::string message = "x";
  while (message.size() < 100000) message += "é";
  ASSERT_EQ(ddprun_fail(worker.handle(), DDPRUN_FAIL_ERROR, message.c_str()), 0);
  const std::string sent = worker.keeper().Receive()["MESSAGE"];
  EXPECT_EQ(sent.size(), 16383u);  // 16384 would end inside a character
  EXPECT_EQ(sent, message.substr(0, sent.size()));
  // Even where every byte doubles.
  ASSERT_EQ(ddprun_fail(worker.handle(), DDPRUN_FAIL_ERROR, std::string(20000, '\n').c_str()), 0);
  EXPECT_EQ(worker.keeper().Receive()["MESSAGE"], std::string(16384, '\n'));
}

class ByHand : public testing::Test {
 protected:
  void SetUp() override {
    ddprun_settings settings = {};
    settings.socket_fd = settings.page_fd = -1;
    settings.world_size = settings.local_world_size = 1;
    settings.generation = 1;
    settings.job_id = "local";
    ASSERT_EQ(ddprun_open(&settings, &handle_), 0);
  }
  void TearDown() override { ddprun_close(handle_); }
  ddprun_handle* handle_ = nullptr;
};

TEST_F(ByHand, ItIsRank0Of1) {
  EXPECT_EQ(ddprun_is_launched(handle_), 0);
  EXPECT_EQ(ddprun_rank(handle_), 0);
  EXPECT_EQ(ddprun_world_size(handle_), 1);
  EXPECT_EQ(ddprun_generation(handle_), 1);
  EXPECT_STREQ(ddprun_job_id(handle_), "local");
  EXPECT_STREQ(ddprun_run_dir(handle_), "");
  EXPECT_EQ(ddprun_resume_from(handle_), nullptr);
  EXPECT_EQ(ddprun_resume_step(handle_), 0);
}

TEST_F(ByHand, TheExchangeWorksWithinTheProcess) {
  auto waiting = AwaitInThread(handle_, "id");
  EXPECT_EQ(ddprun_publish(handle_, "world", "id", "abc", 3), 0);
  EXPECT_EQ(waiting.get().bytes, "abc");
  EXPECT_EQ(Await(handle_, "world", "id", 0).bytes, "abc");
  EXPECT_EQ(ddprun_publish(handle_, "world", "id", "abc", 3), 0);
  EXPECT_EQ(ddprun_publish(handle_, "world", "id", "abd", 3), DDPRUN_EREFUSED);
  EXPECT_EQ(Await(handle_, "other", "id", 0).code, DDPRUN_ETIMEOUT);
}

TEST_F(ByHand, EveryOtherCallSucceedsAndWritesNothing) {
  EXPECT_EQ(ddprun_ready(handle_), 0);
  ddprun_progress_info(handle_, 1, 2, 10, 5.0);
  ddprun_phase(handle_, DDPRUN_PHASE_COMPUTE, "working");
  ddprun_collective(handle_, "all_reduce", 1, 0);
  EXPECT_EQ(ddprun_step_done(handle_, 1, 0.5), 0);
  EXPECT_EQ(ddprun_checkpoint_begin(handle_, 1), 0);
  EXPECT_EQ(ddprun_checkpoint_in_flight(handle_), 1);
  EXPECT_STREQ(ddprun_checkpoint_dir(handle_), "");
  EXPECT_EQ(ddprun_checkpoint_write(handle_, 1, "w.bin", "w", 1), 0);
  EXPECT_EQ(ddprun_checkpoint_finish(handle_, 1), 0);
  EXPECT_EQ(ddprun_checkpoint_in_flight(handle_), 0);
  EXPECT_EQ(ddprun_checkpoint_wait(handle_, 1, 0), 0);
  EXPECT_EQ(ddprun_checkpoint_begin(handle_, 2), 0);
  EXPECT_EQ(ddprun_checkpoint_fail(handle_, 2, "why not"), 0);
  EXPECT_EQ(ddprun_checkpoint_wait(handle_, 2, 0), DDPRUN_EDROPPED);
  EXPECT_EQ(ddprun_fail(handle_, DDPRUN_FAIL_ERROR, "nothing"), 0);
  EXPECT_EQ(ddprun_result(handle_, "FINAL_STEP", "1"), 0);
  EXPECT_EQ(ddprun_finish(handle_), 0);
}

}  // namespace
}  // namespace ddprun
