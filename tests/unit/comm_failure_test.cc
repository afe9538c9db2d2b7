// What a Gloo communicator does when a peer is late, dies, or somebody gives up: no wait stays
// asleep, and the message names communicator, rank, operation and sequence number.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/shared_exchange.h"
#include "worker/comm/communicator.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CommunicatorOptions Options(int rank, int size, double timeout_seconds = 30) {
  CommunicatorOptions options;
  options.name = "data";
  options.rank = rank;
  options.size = size;
  options.timeout_seconds = timeout_seconds;
  return options;
}

// TR43, TR42.
TEST(GlooFailure, ConnectingEndsAtTheDeadlineWhenAPeerNeverComes) {
  SharedExchange exchange;
  const absl::Time start = absl::Now();
  const auto result = CreateGlooCommunicator(Options(1, 3, 0.3), exchange.Get());
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("communicator 'data'"), HasSubstr("rank 1 of 3"),
                    HasSubstr("connect"), HasSubstr("rank 0")));
}

TEST(GlooFailure, ConnectingToAPeerThatHasDiedFailsAtOnceAndNamesIt) {
  SharedExchange exchange;
  // A port of a socket that is bound and does not listen: nobody answers there.
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string published = absl::StrCat("127.0.0.1 ", ntohs(address.sin_port), " 1");
  ASSERT_TRUE(exchange.Get().publish("data", "gloo.0", published).ok());
  const auto result = CreateGlooCommunicator(Options(1, 2, 10), exchange.Get());
  close(fd);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("rank 0"), HasSubstr("refused")));
}

TEST(GlooFailure, AStrangerThatConnectsIsDroppedAndThePeersGoOn) {
  SharedExchange exchange;
  std::thread peer;
  const Exchange plain = exchange.Get();
  Exchange meddling = plain;
  meddling.publish = [&](const std::string& group, const std::string& name,
                         const std::string& bytes) {
    // Somebody finds the port before the peer does.
    int port = 0;
    char host[64];
    EXPECT_EQ(std::sscanf(bytes.c_str(), "%63s %d", host, &port), 2);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, host, &address.sin_addr);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string noise(64, 'x');
    EXPECT_EQ(write(fd, noise.data(), noise.size()), 64);
    close(fd);
    return plain.publish(group, name, bytes);
  };
  peer = std::thread([&] {
    auto made = CreateGlooCommunicator(Options(1, 2), plain);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_TRUE((*made)->Barrier()->Wait().ok());
  });
  auto made = CreateGlooCommunicator(Options(0, 2), meddling);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE((*made)->Barrier()->Wait().ok());
  peer.join();
}

// Makes the communicators of `size` ranks in this process.
std::vector<std::unique_ptr<Communicator>> MakeRanks(int size, SharedExchange& exchange,
                                                     double timeout_seconds) {
  std::vector<std::unique_ptr<Communicator>> ranks(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto made = CreateGlooCommunicator(Options(rank, size, timeout_seconds), exchange.Get());
      ASSERT_TRUE(made.ok()) << made.status();
      ranks[static_cast<size_t>(rank)] = *std::move(made);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

// TR40, TR43.
TEST(GlooFailure, AnOperationThatAPeerDoesNotJoinEndsAtItsDeadline) {
  SharedExchange exchange;
  auto ranks = MakeRanks(2, exchange, 0.4);
  float value = 1;
  WorkPtr first = ranks[0]->AllReduce(&value, 1, DataType::kFloat32, ReduceOp::kSum);
  float other = 1;
  ASSERT_TRUE(ranks[1]->AllReduce(&other, 1, DataType::kFloat32, ReduceOp::kSum)->Wait().ok());
  ASSERT_TRUE(first->Wait().ok());
  const absl::Time start = absl::Now();
  const absl::Status status =
      ranks[0]->AllReduce(&value, 1, DataType::kFloat32, ReduceOp::kSum)->Wait();
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(390));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("communicator 'data'"), HasSubstr("rank 0 of 2"),
                    HasSubstr("all_reduce #2 (1 float32)"), HasSubstr("0.4 s")));
  // Every later operation fails with the same status, at once.
  EXPECT_EQ(ranks[0]->Barrier()->Wait(), status);
  // The peer that is late learns of it too.
  EXPECT_EQ(ranks[1]->AllReduce(&other, 1, DataType::kFloat32, ReduceOp::kSum)->Wait().code(),
            absl::StatusCode::kUnavailable);
}

TEST(GlooFailure, TimeBetweenOperationsDoesNotCountAgainstTheDeadline) {
  SharedExchange exchange;
  auto ranks = MakeRanks(2, exchange, 0.5);
  for (int round = 0; round < 3; ++round) {
    // Longer than the deadline in sum, with nothing queued: a third party that never publishes is
    // awaited.
    ASSERT_FALSE(exchange.Get().await("data", "nothing", 0.3).ok());
    WorkPtr a = ranks[0]->Barrier();
    WorkPtr b = ranks[1]->Barrier();
    ASSERT_TRUE(a->Wait().ok()) << a->Wait();
    ASSERT_TRUE(b->Wait().ok()) << b->Wait();
  }
}

TEST(GlooFailure, AbortFromAnotherThreadEndsPendingAndLaterOperations) {
  SharedExchange exchange;
  auto ranks = MakeRanks(3, exchange, 30);
  std::vector<float> data(1'000'000, 1);
  WorkPtr pending =
      ranks[0]->AllReduce(data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
  WorkPtr queued = ranks[0]->Barrier();
  const absl::Time start = absl::Now();
  std::thread other([&] { ranks[0]->Abort("the launcher says stop"); });
  const absl::Status status = pending->Wait();
  other.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the launcher says stop"));
  EXPECT_EQ(queued->Wait(), status);
  EXPECT_EQ(ranks[0]->Barrier()->Wait(), status);
}

TEST(GlooFailure, ARankThatLeavesInOrderDisturbsNobody) {
  SharedExchange exchange;
  auto ranks = MakeRanks(3, exchange, 30);
  ranks[2].reset();
  int32_t value = 7;
  WorkPtr sent = ranks[0]->Send(&value, 1, DataType::kInt32, 1);
  int32_t got = 0;
  const absl::Status status = ranks[1]->Receive(&got, 1, DataType::kInt32, 0)->Wait();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(sent->Wait().ok());
  EXPECT_EQ(got, 7);
  // An operation that needs the rank says that it has left.
  const absl::Status missing = ranks[0]->Barrier()->Wait();
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("rank 2 has left"));
}

TEST(GlooFailure, QueuedOperationsAreDoneBeforeACommunicatorIsDestroyed) {
  SharedExchange exchange;
  auto ranks = MakeRanks(2, exchange, 30);
  std::vector<float> a(300'000, 1);
  std::vector<float> b(300'000, 2);
  WorkPtr first = ranks[0]->AllReduce(a.data(), a.size(), DataType::kFloat32, ReduceOp::kSum);
  WorkPtr second = ranks[1]->AllReduce(b.data(), b.size(), DataType::kFloat32, ReduceOp::kSum);
  std::thread other([&] { ranks[1].reset(); });
  ranks[0].reset();
  other.join();
  EXPECT_TRUE(first->Wait().ok());
  EXPECT_TRUE(second->Wait().ok());
  EXPECT_EQ(a, std::vector<float>(300'000, 3));
}

// Ranks run all-reduces until rank 2 kills itself in the middle of one; the others must know within
// a second, also rank 0, which is not a neighbour of rank 2 in the ring of four.
void KillOneInTheMiddle(size_t count, bool idle, bool shared_memory) {
  SharedExchange exchange;
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);  // written by rank 2 at its death
  const auto results = RunProcesses(
      4,
      [&](int rank) -> std::string {
        CommunicatorOptions options = Options(rank, 4);
        options.shared_memory = shared_memory;
        auto made = CreateGlooCommunicator(options, exchange.Get());
        if (!made.ok()) return made.status().ToString();
        Communicator& communicator = **made;
        std::vector<float> data(count, 1);
        auto reduce = [&] {
          return communicator.AllReduce(data.data(), data.size(), DataType::kFloat32,
                                        ReduceOp::kSum);
        };
        absl::Status status;
        for (int round = 0; round < 3 && status.ok(); ++round) status = reduce()->Wait();
        if (rank == 2) {
          if (!idle) reduce();
          const int64_t now = absl::ToUnixMicros(absl::Now());
          if (write(pipe_ends[1], &now, sizeof(now)) != sizeof(now)) return "no pipe";
          kill(getpid(), SIGKILL);
        }
        while (status.ok()) status = reduce()->Wait();
        const absl::Time failed = absl::Now();
        if (rank != 0)
          return std::string(status.message()) + "|" +
                 absl::StrCat(status.code() == absl::StatusCode::kUnavailable);
        int64_t died = 0;
        if (read(pipe_ends[0], &died, sizeof(died)) != sizeof(died)) return "no time of death";
        if (failed - absl::FromUnixMicros(died) > absl::Seconds(1)) return "noticed too late";
        return std::string(status.message()) + "|" +
               absl::StrCat(status.code() == absl::StatusCode::kUnavailable);
      },
      20);
  for (int rank : {0, 1, 3}) {
    EXPECT_THAT(
        results[static_cast<size_t>(rank)],
        AllOf(HasSubstr("communicator 'data'"), HasSubstr(absl::StrCat("rank ", rank, " of 4")),
              HasSubstr("is lost"), HasSubstr("|1")));
  }
  EXPECT_THAT(results[2], HasSubstr("died of signal 9"));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

class GlooPeerDies : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(SharedMemory, GlooPeerDies, testing::Bool());

// A4, R1, D1: the survivors of a dead peer are told, they do not wait for a timeout.
TEST_P(GlooPeerDies, ASmallAllReduceOfTheOthersFailsWithinASecond) {
  KillOneInTheMiddle(10, false, GetParam());
}
TEST_P(GlooPeerDies, ALargeAllReduceOfTheOthersFailsWithinASecond) {
  KillOneInTheMiddle(20'000'000, false, GetParam());
}
TEST_P(GlooPeerDies, BetweenOperationsTheNextOneFails) {
  KillOneInTheMiddle(10, true, GetParam());
}

// TR45: a rank that does something else than its peers is an error on both, at once, and names
// them; no hang.
TEST(GlooFailure, DifferentOperationsOnTwoRanksAreAnErrorAtOnce) {
  SharedExchange exchange;
  auto ranks = MakeRanks(2, exchange, 30);
  std::vector<float> large(4096, 1);
  std::vector<float> other(4096, 1);
  const absl::Time start = absl::Now();
  WorkPtr a = ranks[0]->AllReduce(large.data(), large.size(), DataType::kFloat32, ReduceOp::kSum);
  WorkPtr b = ranks[1]->AllReduce(other.data(), 7, DataType::kFloat32, ReduceOp::kSum);
  const absl::Status first = a->Wait();
  const absl::Status second = b->Wait();
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_FALSE(first.ok());
  EXPECT_FALSE(second.ok());
  EXPECT_TRUE(first.code() == absl::StatusCode::kFailedPrecondition ||
              second.code() == absl::StatusCode::kFailedPrecondition)
      << first << second;
}

}  // namespace
}  // namespace ddprun
