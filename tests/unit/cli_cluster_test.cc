// Who a node is among others, where they meet, and which of its addresses the others use.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/cli/cluster.h"
#include "launcher/cli/meeting.h"
#include "launcher/net/address.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using Words = std::vector<std::string>;

// ---- net/address.h

TEST(AddressTest, EndpointsAreTakenApartAndPutTogether) {
  const std::tuple<const char*, const char*, int> cases[] = {
      {"node1:29400", "node1", 29400}, {"[fd00::1]:80", "fd00::1", 80},
      {"node1", "node1", 0},           {"[::1]", "::1", 0},
      {"fd00::1", "fd00::1", 0},
  };
  for (const auto& [text, host, port] : cases) {
    const net::Endpoint endpoint = net::SplitEndpoint(text);
    EXPECT_EQ(endpoint.host, host);
    EXPECT_EQ(endpoint.port, port);
  }
  EXPECT_EQ(net::JoinEndpoint("fd00::1", 80), "[fd00::1]:80");
  EXPECT_EQ(net::JoinEndpoint("node1", 80), "node1:80");
}

// L46
TEST(AddressTest, LoopbackIsKnownInAllItsSpellings) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1", "localhost"}) {
    EXPECT_TRUE(net::NamesLoopback(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "fd00::1", "::", "node1", "localhost1", "128.0.0.1"}) {
    EXPECT_FALSE(net::NamesLoopback(host)) << host;
  }
}

net::Card CardAt(const char* name, const char* address) {
  net::Card card;
  card.name = name;
  card.address = address;
  card.up = true;
  card.loopback = net::IsLoopback(address);
  card.link_local = net::IsLinkLocal(address);
  return card;
}

// L47, L58: one line for each card, with the reason.
TEST(AddressTest, OfSeveralCardsTheOneWithTheDefaultRouteIsChosenAndAllAreShown) {
  std::vector<net::Card> cards = {CardAt("lo", "127.0.0.1"), CardAt("docker0", "172.17.0.1"),
                                  CardAt("eth0", "fd00::2"), CardAt("eth0", "10.0.0.2"),
                                  CardAt("ib0", "10.1.0.2"), CardAt("eth1", "10.2.0.2")};
  cards[1].bridge = true;
  cards[2].default_route = cards[3].default_route = true;
  cards[5].up = false;
  const net::Choice choice = net::ChooseAddress(cards, "");
  EXPECT_EQ(choice.address, "10.0.0.2");
  EXPECT_EQ(choice.card, "eth0");
  EXPECT_THAT(
      choice.table,
      ElementsAre("  lo  127.0.0.1  only this machine reaches it",
                  "  docker0  172.17.0.1  of containers or virtual machines",
                  "  eth0  fd00::2  one is enough", "  eth0  10.0.0.2  chosen: default route",
                  "  ib0  10.1.0.2  no default route", "  eth1  10.2.0.2  is down"));
  EXPECT_EQ(net::ChooseAddress(cards, "ib0").address, "10.1.0.2");
  EXPECT_EQ(net::ChooseAddress(cards, "eth1").address, "") << "it is down";
  EXPECT_EQ(net::ChooseAddress(cards, "eth7").address, "");
}

TEST(AddressTest, WithOneCardThereIsNothingToExplain) {
  const std::vector<net::Card> cards = {CardAt("lo", "127.0.0.1"), CardAt("eth0", "10.0.0.2"),
                                        CardAt("eth0", "fe80::1")};
  EXPECT_EQ(net::ChooseAddress(cards, "").address, "10.0.0.2");
  EXPECT_THAT(net::ChooseAddress(cards, "").table, IsEmpty());
}

// L54
TEST(AddressTest, AMachineWithIpv6AloneHasAnAddress) {
  const std::vector<net::Card> cards = {CardAt("lo", "::1"), CardAt("eth0", "fe80::1"),
                                        CardAt("eth0", "fd00::2")};
  EXPECT_EQ(net::ChooseAddress(cards, "").address, "fd00::2");
}

// ---- where nodes meet

absl::StatusOr<Meeting> Met(const Words& words) {
  const auto options = ParseCommandLine(words, "ddprun");
  if (!options.ok()) return options.status();
  return MeetingOf(*options);
}

struct MeetingCase {
  Words words;
  std::string endpoint;
  std::optional<bool> hosts;
};

TEST(MeetingTest, TorchrunsSpellingsLeadToTheSame) {
  const MeetingCase cases[] = {
      {{"--coordinator", "n1:7"}, "n1:7", std::nullopt},
      {{"--coordinator", "[fd00::1]:7", "--node-rank", "0"}, "[fd00::1]:7", std::nullopt},
      {{"--rdzv-endpoint", "n1"}, "n1:29400", std::nullopt},
      {{"--rdzv-endpoint", "n1:5", "--rdzv-backend", "c10d", "--node-rank", "1"},
       "n1:5",
       std::nullopt},
      {{"--rdzv-endpoint", "n1:5", "--rdzv-backend", "c10d", "--node-rank", "0"}, "n1:5", true},
      {{"--rdzv-endpoint", "n1:5", "--rdzv-conf", "is_host=true"}, "n1:5", true},
      {{"--rdzv-endpoint", "n1:5", "--rdzv-conf", "is_host=0"}, "n1:5", false},
      {{"--master-addr", "n1"}, "n1:29500", std::nullopt},
      {{"--master-addr", "n1", "--node-rank", "0"}, "n1:29500", true},
      {{"--master-addr", "n1", "--master-port", "9", "--node-rank", "1"}, "n1:9", false},
      {{"--coordinator", "127.0.0.1:7", "--advertise-addr", "127.0.0.1"},
       "127.0.0.1:7",
       std::nullopt},
      {{"--coordinator", "localhost:7", "--local-addr", "::1"}, "localhost:7", std::nullopt},
  };
  for (MeetingCase c : cases) {
    c.words.insert(c.words.end(), {"--nnodes", "2", "prog"});
    const absl::StatusOr<Meeting> met = Met(c.words);
    ASSERT_TRUE(met.ok()) << met.status();
    EXPECT_EQ(met->Endpoint(), c.endpoint) << absl::StrJoin(c.words, " ");
    EXPECT_EQ(met->hosts, c.hosts) << absl::StrJoin(c.words, " ");
  }
}

// Each node would own such an address, and host a job of its own.
TEST(MeetingTest, NodesCannotMeetAtAnAddressOfNobody) {
  for (const char* host :
       {"0.0.0.0", "[::]", "[::ffff:0.0.0.0]", "255.255.255.255", "224.0.0.1", "239.1.2.3",
        "[ff00::1]", "[ff02::1%lo]", "[::ffff:224.0.0.1]", "[fe80::1]"}) {
    const std::string endpoint = absl::StrCat(host, ":7");
    for (const char* option : {"--coordinator", "--rdzv-endpoint"}) {
      const auto met = Met({"--nnodes", "2", option, endpoint, "prog"});
      EXPECT_THAT(
          std::string(met.status().message()),
          AllOf(HasSubstr(absl::StrCat(option, " ", endpoint)), HasSubstr("give the name")));
    }
  }
}

// Refused as they are typed, before anything is looked up.
TEST(MeetingTest, WhatIsNoHostIsRefusedByItsText) {
  for (const std::string& host :
       {std::string("a b"), std::string("@foo"), std::string("a\x1b[1m"), std::string(300, 'a'),
        std::string("a..b"), std::string("-a"), std::string("1.2.3"), std::string("0x7f000001"),
        std::string("2130706433"), std::string("10.0.0.256"), std::string("[fd00::1::2]"),
        std::string("[a]"), std::string("%h")}) {
    for (const char* command : {"run", "agent"}) {
      const auto met = Met({command, "--coordinator", host + ":7"});
      EXPECT_THAT(std::string(met.status().message()),
                  AllOf(HasSubstr("--coordinator "), HasSubstr("[::1]:29400"),
                        ::testing::Not(HasSubstr("\x1b"))))
          << host;
    }
  }
}

// L46
TEST(MeetingTest, NodesCannotMeetWhereOnlyOneOfThemIs) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "[::1]", "localhost"}) {
    const auto met = Met({"--nnodes", "2", "--coordinator", absl::StrCat(host, ":7"), "prog"});
    EXPECT_THAT(std::string(met.status().message()),
                AllOf(HasSubstr("--coordinator "), HasSubstr("only this machine"),
                      HasSubstr("2 nodes"), HasSubstr("--advertise-addr")));
  }
}

TEST(MeetingTest, NowhereToMeetIsAnErrorWithTheCommandToType) {
  EXPECT_THAT(std::string(Met({"--nnodes", "2:4", "prog"}).status().message()),
              AllOf(HasSubstr("--nnodes 2:4 --coordinator HOST:29400"), HasSubstr("--hosts")));
}

// ---- the plan

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() {
    here_.cores = 4;
    here_.secret = "of this test";
  }
  absl::StatusOr<ClusterPlan> Plan(Words words) {
    const auto options = ParseCommandLine(words, "ddprun");
    if (!options.ok()) return options.status();
    ClusterWait wait;
    wait.say = [this](const std::string& line) { said_.push_back(line); };
    wait.pause = [](double) { return true; };
    return PlanCluster(*options, here_, wait);
  }
  absl::StatusOr<ClusterPlan> OnThisMachine(uint16_t port, Words more = {}) {
    more.insert(more.end(), {"--nnodes", "2", "--coordinator", absl::StrCat("127.0.0.1:", port),
                             "--advertise-addr", "127.0.0.1", "prog"});
    return Plan(more);
  }
  std::string ErrorOf(const Words& words) { return std::string(Plan(words).status().message()); }

  Surroundings here_;
  Words said_;
};

// A port that somebody listens on, who is no ddprun.
class Taken {
 public:
  Taken() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    port = ntohs(address.sin_port);
  }
  ~Taken() { Free(); }
  void Free() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  uint16_t port = 0;

 private:
  int fd_;
};

TEST_F(ClusterTest, OneNodeIsAloneAndNeedsNoSecret) {
  here_.secret.reset();
  const auto plan = Plan({"--nproc", "2", "prog"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->role, Role::kAlone);
  EXPECT_THAT(ErrorOf({"--node-rank", "1", "prog"}),
              AllOf(HasSubstr("--node-rank 1"), HasSubstr("--nnodes")));
}

TEST_F(ClusterTest, TheFirstWithTheAddressHostsAndTheNextOnesJoin) {
  Taken port;
  port.Free();
  const auto host = OnThisMachine(port.port, {"--nproc", "3", "--node", "a"});
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(host->role, Role::kHost);
  EXPECT_EQ(host->listen_address, absl::StrCat("127.0.0.1:", port.port));
  EXPECT_EQ(host->endpoint, host->listen_address);
  EXPECT_EQ(host->address, "127.0.0.1");
  EXPECT_EQ(host->card, "lo");
  EXPECT_EQ(host->node, "a");
  EXPECT_EQ(host->slots, 3u);
  // It does not listen yet, but it is about to.
  const auto member = OnThisMachine(port.port, {"--node", "b", "--node-rank", "1"});
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ(member->role, Role::kMember);
  EXPECT_EQ(member->node_rank, 1);
}

TEST_F(ClusterTest, APortThatSomethingElseHasIsSaidSo) {
  Taken port;
  const auto plan = OnThisMachine(port.port);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()),
              AllOf(HasSubstr(absl::StrCat("port ", port.port)), HasSubstr("taken"),
                    HasSubstr("choose another port")));
}

TEST_F(ClusterTest, SeveralNodesNeedASecret) {
  here_.secret.reset();
  EXPECT_THAT(ErrorOf({"--nnodes", "2", "--coordinator", "10.0.0.1:7", "prog"}),
              AllOf(HasSubstr("--nnodes 2"), HasSubstr("DDPRUN_SECRET")));
  EXPECT_THAT(ErrorOf({"coordinator", "--listen", "0.0.0.0:0", "prog"}),
              AllOf(HasSubstr("--listen 0.0.0.0:0"), HasSubstr("DDPRUN_SECRET")));
  EXPECT_TRUE(Plan({"coordinator", "--listen", "127.0.0.1:0", "prog"}).ok());
  EXPECT_THAT(ErrorOf({"coordinator", "--listen", "127.0.0.1:0", "--nnodes", "2", "prog"}),
              HasSubstr("DDPRUN_SECRET"));
}

// L45, L46, S15: a name that nobody knows is waited for, and named at the end.
TEST_F(ClusterTest, ANameWithoutAnAddressIsWaitedForWithinTheJoinTimeout) {
  const auto plan =
      Plan({"--nnodes", "2", "--coordinator", "bogus.invalid:7", "--join-timeout", "0.2", "prog"});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(plan.status().message()),
              AllOf(HasSubstr("bogus.invalid"), HasSubstr("--join-timeout"), HasSubstr("DNS")));
  ASSERT_EQ(said_.size(), 1u) << "one line, then every ten seconds";
  EXPECT_THAT(said_[0], HasSubstr("trying again"));
}

TEST_F(ClusterTest, ACardThatIsNotThereIsAnErrorThatListsThoseThatAre) {
  EXPECT_THAT(ErrorOf({"agent", "--coordinator", "127.0.0.1:7", "--iface", "nosuch0"}),
              AllOf(HasSubstr("--iface nosuch0"), HasSubstr("lo  127.0.0.1")));
}

TEST_F(ClusterTest, AnAgentLooksForItsCoordinatorAtOneMachine) {
  for (const char* host : {"0.0.0.0", "[::]", "255.255.255.255", "224.0.0.1", "[ff02::1]"}) {
    EXPECT_THAT(ErrorOf({"agent", "--coordinator", absl::StrCat(host, ":7")}),
                AllOf(HasSubstr("--coordinator"), HasSubstr("give the name")))
        << host;
  }
}

// The others would look for this node there.
TEST_F(ClusterTest, AnAdvertisedAddressIsOneOfThisMachine) {
  for (const char* address :
       {"0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1",
        "1.2.3", "0x7f000001", "127.1", "192.0.2.1", "2001:db8::1", "127.255.255.255"}) {
    for (const char* option : {"--advertise-addr", "--local-addr"}) {
      EXPECT_THAT(ErrorOf({"agent", "--coordinator", "bogus.invalid:7", option, address}),
                  AllOf(HasSubstr(absl::StrCat(option, " ", address))))
          << address;
    }
  }
  EXPECT_THAT(said_, IsEmpty()) << "nothing is waited for";
}

TEST_F(ClusterTest, TheLoopbackCardLeadsToNoOtherNode) {
  EXPECT_THAT(ErrorOf({"agent", "--coordinator", "192.0.2.1:7", "--iface", "lo"}),
              AllOf(HasSubstr("--iface lo"), HasSubstr("192.0.2.1:7")));
  EXPECT_TRUE(Plan({"agent", "--coordinator", "127.0.0.1:7", "--iface", "lo"}).ok());
}

TEST_F(ClusterTest, AnAgentNeverHosts) {
  Taken port;
  port.Free();
  const auto plan = Plan({"agent", "--coordinator", absl::StrCat("127.0.0.1:", port.port)});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->role, Role::kMember);
  EXPECT_EQ(plan->address, "127.0.0.1");
}

TEST_F(ClusterTest, ASecretTakenOfTheSurroundingsIsInNoPlanForWorkers) {
  setenv("DDPRUN_SECRET", "taken out", 1);
  const Surroundings here = LookAround({"ddprun"});
  EXPECT_THAT(here.secret, Optional(std::string("taken out")));
  EXPECT_FALSE(here.environment.contains("DDPRUN_SECRET"));
  EXPECT_EQ(getenv("DDPRUN_SECRET"), nullptr);
}

}  // namespace
}  // namespace ddprun::cli
