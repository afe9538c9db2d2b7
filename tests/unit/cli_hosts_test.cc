// --hosts as typed and from a file; what is run by ssh, and what its failures mean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "launcher/cli/hosts.h"
#include "launcher/cli/hosts_plan.h"
#include "launcher/cli/remote_start.h"

namespace ddprun::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Hosts, HaveUsersAndSlots) {
  const auto hosts = ReadHosts("a, b:4,ann@c.example.org,[fd00::2]:3,ann@[fd00::3]");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts,
              ElementsAre(HostEntry{"a", "a", "a", 0}, HostEntry{"b", "b", "b", 4},
                          HostEntry{"ann@c.example.org", "c.example.org", "c.example.org", 0},
                          HostEntry{"fd00::2", "fd00::2", "fd00--2", 3},
                          HostEntry{"ann@fd00::3", "fd00::3", "fd00--3", 0}));
}

TEST(Hosts, AFileHasOneALine) {
  const auto hosts = ParseHostFile("# ours\n\na slots=4\n  b:2 # old\nann@c\r\n", "hosts");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(HostEntry{"a", "a", "a", 4}, HostEntry{"b", "b", "b", 2},
                                  HostEntry{"ann@c", "c", "c", 0}));
}

TEST(Hosts, ErrorsNameTheHostAndTheFix) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a,,b", "is no name"},
      {"a:0", "number of workers"},
      {"a:x", "--ssh 'ssh -p PORT'"},
      {"a:", "missing behind"},
      {"fd00::2", "in brackets"},
      {"[fd00::2", "] is missing"},
      {"a,b:2,a:3", "a: is named twice"},
      {"-oProxyCommand=x", "is no name"},
      {"@", "--hosts @"},
      {"$(x)", "is no name"},
      {"x y", "is no name"},
      {"-l@a", "no name of a user"},
      {"a@b@c", "no name of a user"},
      {"%h", "is no name"},
      {"a,1.2.3", "no IPv4 address"},
      {"0.0.0.0", "every address"},
      {"[fe80::1]", "link-local"},
      {std::string(300, 'a'), "253"}};
  for (const auto& [text, words] : cases) {
    const auto hosts = ReadHosts(text);
    ASSERT_FALSE(hosts.ok()) << text;
    EXPECT_THAT(std::string(hosts.status().message()), HasSubstr(words)) << text;
  }
  EXPECT_THAT(std::string(ParseHostFile("a\nb max=3\n", "my").status().message()),
              HasSubstr("my:2: max=3: only slots=N"));
  EXPECT_THAT(std::string(ParseHostFile("# none\n", "my").status().message()),
              HasSubstr("my: names no host"));
}

TEST(Hosts, AreNoMoreThanDescriptorsAllow) {
  std::string many = "h0";
  for (size_t i = 1; i <= kHostsMax; ++i) many += ",h" + std::to_string(i);
  EXPECT_THAT(std::string(ReadHosts(many).status().message()), HasSubstr("129 hosts, and 128"));
}

TEST(Hosts, GiveTheNumberOfNodes) {
  Options options;
  options.hosts = "a,b,c";
  ASSERT_TRUE(ApplyHosts(&options).ok());
  EXPECT_EQ(options.nodes_min, 3u);
  EXPECT_EQ(options.nodes_max, 3u);
  options.nodes_min = 2;
  ASSERT_TRUE(ApplyHosts(&options).ok());
  EXPECT_EQ(options.nodes_min, 2u);
  options.nodes_min = options.nodes_max = 4;
  EXPECT_THAT(std::string(ApplyHosts(&options).message()), HasSubstr("names 3 hosts"));
}

// What a shell makes of a command is what was meant, whatever the names hold.
TEST(RemoteStart, ShellsTakeTheCommandApartAsItWasMeant) {
  const RemotePlace place = {"ssh", "/bin/echo", "/"};
  const std::string command = RemoteCommand(place, {"it's", "$HOME `x` \"y\" \\ !", ""});
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output(4096, '\0');
  output.resize(fread(output.data(), 1, output.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(output, "ddprun-start:agent\nit's $HOME `x` \"y\" \\ ! \n");
}

TEST(RemoteStart, MarksAreToldFromOtherLines) {
  EXPECT_EQ(MarkIn("ddprun-start:agent"), StartMark::kAgent);
  EXPECT_EQ(MarkIn("ddprun-start:no-folder"), StartMark::kNoFolder);
  EXPECT_EQ(MarkIn(std::string(JobOverMark())), StartMark::kJobOver);
  EXPECT_EQ(MarkIn("ddprun-start:something"), std::nullopt);
  EXPECT_EQ(MarkIn(" ddprun-start:agent"), std::nullopt);
}

TEST(RemoteStart, TypedOptionsComeBeforeOurs) {
  const auto command = SshCommand({"ssh -p 2222 -o BatchMode=no", "", ""}, "ann@b", "run");
  EXPECT_EQ(command[2], "exec ssh -p 2222 -o BatchMode=no \"$@\"");
  EXPECT_EQ(command[command.size() - 2], "ann@b");
  EXPECT_EQ(command.back(), "run");
}

struct FailureCase {
  std::string line;
  std::string fix;
  bool passing;
};

TEST(RemoteStart, FailuresAreExplained) {
  const RemotePlace place = {"ssh", "/opt/ddprun", "/data"};
  const HostEntry host = {"ann@b", "b", "b", 0};
  const std::vector<FailureCase> cases = {
      {"ann@b: Permission denied (publickey).", "ssh-copy-id ann@b", false},
      {"Host key verification failed.", "by hand", false},
      {"ssh: Could not resolve hostname b: Name or service not known", "check the name", false},
      {"ssh: connect to host b port 22: Connection refused", "is sshd running", true},
      {"ssh: connect to host b port 22: Connection timed out", "firewall", true},
      {"kex_exchange_identification: read: Connection reset by peer", "look at its log", true}};
  for (const FailureCase& c : cases) {
    const StartFailure failure =
        Explain({StartMark::kNone, false, 255, {"motd", c.line}}, place, host);
    EXPECT_THAT(failure.text, HasSubstr("host ann@b: ssh: ")) << c.line;
    EXPECT_THAT(failure.text, HasSubstr(c.fix)) << c.line;
    EXPECT_EQ(failure.passing, c.passing) << c.line;
  }
  EXPECT_THAT(Explain({StartMark::kNoFolder, false, 1, {}}, place, host).text,
              HasSubstr("/data is not"));
  EXPECT_THAT(Explain({StartMark::kNoProgram, false, 1, {}}, place, host).text,
              HasSubstr("/opt/ddprun"));
  const StartFailure silent = Explain({StartMark::kNone, true, 137, {}}, place, host);
  EXPECT_THAT(silent.text, HasSubstr("after 30 s"));
  EXPECT_TRUE(silent.passing);
}

TEST(RemoteStart, PausesDoubleUpToAMinute) {
  EXPECT_EQ(BackOffSeconds(1), 5);
  EXPECT_EQ(BackOffSeconds(2), 10);
  EXPECT_EQ(BackOffSeconds(4), 40);
  EXPECT_EQ(BackOffSeconds(5), 60);
  EXPECT_EQ(BackOffSeconds(1000), 60);
}

TEST(Hosts, EachJobHasAnotherSecret) {
  EXPECT_EQ(NewSecret().size(), 64u);
  EXPECT_NE(NewSecret(), NewSecret());
}

}  // namespace
}  // namespace ddprun::cli
