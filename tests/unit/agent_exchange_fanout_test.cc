// What a node's workers await goes up once, and everybody gets the answer.
#include <gtest/gtest.h>

#include "launcher/agent/exchange_fanout.h"

namespace ddprun::agent {
namespace {

using Answer = ExchangeFanout::Answer;

v1::Await AwaitOf(uint32_t rank, const std::string& name = "id") {
  v1::Await await;
  await.set_generation(3);
  await.set_rank(rank);
  await.set_group("world");
  await.set_name(name);
  return await;
}

v1::CoordinatorMessage ValueOf(uint32_t rank, const std::string& value) {
  v1::CoordinatorMessage message;
  message.mutable_value()->set_generation(3);
  message.mutable_value()->set_rank(rank);
  message.mutable_value()->set_group("world");
  message.mutable_value()->set_name("id");
  message.mutable_value()->set_value(value);
  return message;
}

std::vector<uint32_t> RanksOf(const std::vector<v1::CoordinatorMessage>& messages) {
  std::vector<uint32_t> ranks;
  for (const auto& message : messages) {
    ranks.push_back(message.has_value() ? message.value().rank()
                                        : message.exchange_refused().rank());
  }
  return ranks;
}

TEST(ExchangeFanout, AKeyIsAskedForOnceAndAllWhoWaitAreTold) {
  ExchangeFanout fanout;
  v1::CoordinatorMessage here;
  EXPECT_EQ(fanout.Await(AwaitOf(9), &here), Answer::kAsk);
  EXPECT_EQ(fanout.Await(AwaitOf(8), &here), Answer::kWait);
  EXPECT_EQ(fanout.Await(AwaitOf(8, "other"), &here), Answer::kAsk);
  const auto told = fanout.Spread(ValueOf(9, "bytes"));
  EXPECT_EQ(RanksOf(told), (std::vector<uint32_t>{8, 9}));
  EXPECT_EQ(told[0].value().value(), "bytes");
}

TEST(ExchangeFanout, ALateOneIsAnsweredFromWhatIsKnown) {
  ExchangeFanout fanout;
  v1::CoordinatorMessage here;
  fanout.Await(AwaitOf(0), &here);
  fanout.Spread(ValueOf(0, "bytes"));
  ASSERT_EQ(fanout.Await(AwaitOf(1), &here), Answer::kHere);
  EXPECT_EQ(here.value().rank(), 1u);
  EXPECT_EQ(here.value().value(), "bytes");
  EXPECT_EQ(here.value().generation(), 3u);
}

TEST(ExchangeFanout, ARefusedPublishConcernsItsRankAlone) {
  ExchangeFanout fanout;
  v1::CoordinatorMessage here;
  fanout.Await(AwaitOf(0), &here);
  v1::CoordinatorMessage refused;
  refused.mutable_exchange_refused()->set_group("world");
  refused.mutable_exchange_refused()->set_name("id");
  refused.mutable_exchange_refused()->set_rank(5);
  EXPECT_EQ(RanksOf(fanout.Spread(refused)), (std::vector<uint32_t>{5}));
  EXPECT_EQ(RanksOf(fanout.Spread(ValueOf(0, "b"))), (std::vector<uint32_t>{0}));
}

TEST(ExchangeFanout, ARefusedQuestionIsToldToAllWhoWaitAndMayBeAskedAgain) {
  ExchangeFanout fanout;
  v1::CoordinatorMessage here;
  fanout.Await(AwaitOf(0), &here);
  fanout.Await(AwaitOf(1), &here);
  v1::CoordinatorMessage refused;
  refused.mutable_exchange_refused()->set_group("world");
  refused.mutable_exchange_refused()->set_name("id");
  refused.mutable_exchange_refused()->set_rank(0);
  EXPECT_EQ(RanksOf(fanout.Spread(refused)), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(fanout.Await(AwaitOf(1), &here), Answer::kAsk);
}

TEST(ExchangeFanout, WhatIsTooMuchToKeepIsAskedForAgain) {
  ExchangeFanout fanout;
  v1::CoordinatorMessage here;
  fanout.Await(AwaitOf(0), &here);
  fanout.Spread(ValueOf(0, std::string(ExchangeFanout::kBytesMax + 1, 'x')));
  EXPECT_EQ(fanout.Await(AwaitOf(1), &here), Answer::kAsk);
}

}  // namespace
}  // namespace ddprun::agent
