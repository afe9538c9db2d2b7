// TLS and mutual TLS, with certificates that openssl makes: what is accepted, and what each side
// says where it is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "common/mailbox.h"
#include "launcher/agent/stream.h"
#include "launcher/net/credentials.h"
#include "launcher/net/first_bytes.h"
#include "tests/process/door_harness.h"
#include "tests/process/launch.h"

namespace ddprun::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kLoopback[] = "DNS:localhost,IP:127.0.0.1";

net::Security Read(const std::string& certificate, const std::string& key,
                   const std::string& authority) {
  net::Security security{kSecret, "", "", ""};
  const absl::Status status = net::ReadTls(certificate, key, authority, &security);
  EXPECT_TRUE(status.ok()) << status.message();
  return security;
}

class Tls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new Folder;
    authority_ = new Authority(*folder_, "authority");
    server_ = authority_->Sign("server", kLoopback);
  }
  static void TearDownTestSuite() {
    delete authority_;
    delete folder_;
  }
  // "" when the node is welcomed, else why not.
  static std::string Attach(const std::string& address, const net::Security& security) {
    Mailbox<std::string> verdict;
    agent::CoordinatorStream stream(
        {net::MakeChannel(address, security), true, address, security, true},
        [&](v1::CoordinatorMessage message) {
          if (message.has_welcome()) verdict.Post("");
          if (message.has_refusal()) verdict.Post("refused: " + message.refusal().reason());
        },
        [&](std::string reason) { verdict.Post("ended: " + reason); });
    v1::AgentMessage hello;
    *hello.mutable_hello() = FakeAgent::MakeHello();
    stream.Send(hello);
    return verdict.Take(std::chrono::steady_clock::now() + std::chrono::seconds(20))
        .value_or("it did not end");
  }
  // What the coordinator says of the first that failed; "" nothing.
  static std::string TlsReason(Door* door) {
    const auto event = door->WaitFor("join_refused", "tls");
    return event ? event->value("reason", "") : "";
  }
  static Door::Options Serve(const net::Security& security) {
    Door::Options options;
    options.security = security;
    return options;
  }
  static std::string ReadError(const std::string& certificate, const std::string& key,
                               const std::string& authority) {
    net::Security security;
    return std::string(net::ReadTls(certificate, key, authority, &security).message());
  }

  static Folder* folder_;
  static Authority* authority_;
  static Authority::Pair server_;
};
Folder* Tls::folder_ = nullptr;
Authority* Tls::authority_ = nullptr;
Authority::Pair Tls::server_;

TEST_F(Tls, AServerOfTheAuthorityIsBelieved) {
  Door door(Serve(Read(server_.certificate, server_.key, "")));
  EXPECT_EQ(Attach(door.address(), Read("", "", authority_->certificate())), "");
  EXPECT_EQ(
      Attach("localhost:" + std::to_string(door.port()), Read("", "", authority_->certificate())),
      "");
}

TEST_F(Tls, PlainTextToTlsAndTheReverseIsOneClearLineOnBothSides) {
  Door tls(Serve(Read(server_.certificate, server_.key, "")));
  EXPECT_THAT(Attach(tls.address(), {kSecret, "", "", ""}),
              HasSubstr("refused: the coordinator " + tls.address() +
                        " speaks TLS, and this node plain text: give it --tls-ca"));
  EXPECT_TRUE(tls.WaitFor("join_refused", "tls"));
  Door plain;
  EXPECT_THAT(Attach(plain.address(), Read("", "", authority_->certificate())),
              HasSubstr("refused: the coordinator " + plain.address() +
                        " speaks plain text, and this node TLS: leave --tls-ca out"));
  EXPECT_TRUE(plain.WaitFor("join_refused", "tls"));
}

TEST_F(Tls, AServerOfAnotherAuthorityOfAnotherNameOrExpiredIsNotBelieved) {
  const Authority other(*folder_, "other");
  Door door(Serve(Read(server_.certificate, server_.key, "")));
  EXPECT_THAT(Attach(door.address(), Read("", "", other.certificate())),
              HasSubstr("is not trusted"));
  // Of both sides of this process the last that spoke is heard.
  EXPECT_THAT(TlsReason(&door), HasSubstr("authority"));
  const Authority::Pair elsewhere = authority_->Sign("elsewhere", "DNS:elsewhere.example");
  Door named(Serve(Read(elsewhere.certificate, elsewhere.key, "")));
  EXPECT_THAT(Attach(named.address(), Read("", "", authority_->certificate())),
              HasSubstr("is not for 127.0.0.1"));
  EXPECT_TRUE(named.WaitFor("join_refused", "tls"));
}

TEST_F(Tls, AnExpiredCertificateIsNamedAtTheStartAndByNodes) {
  const Authority::Pair expired = authority_->Sign("expired", kLoopback, /*expired=*/true);
  EXPECT_THAT(ReadError(expired.certificate, expired.key, ""), HasSubstr("has expired"));
  // One that expires while the coordinator runs.
  net::Security security = Read(server_.certificate, server_.key, "");
  security.tls_certificate = ReadText(expired.certificate);
  security.tls_key = ReadText(expired.key);
  Door door(Serve(security));
  EXPECT_THAT(Attach(door.address(), Read("", "", authority_->certificate())),
              HasSubstr("certificate has expired"));
}

TEST_F(Tls, AMutualServerAsksForACertificateOfItsAuthority) {
  const net::Security mutual = Read(server_.certificate, server_.key, authority_->certificate());
  Door door(Serve(mutual));
  const Authority::Pair node = authority_->Sign("node", "DNS:node");
  EXPECT_EQ(Attach(door.address(), Read(node.certificate, node.key, authority_->certificate())),
            "");
  EXPECT_THAT(Attach(door.address(), Read("", "", authority_->certificate())),
              HasSubstr("it asks for one: give --tls-cert and --tls-key"));
  EXPECT_THAT(TlsReason(&door), HasSubstr("it gave no certificate"));
  const Authority other(*folder_, "stranger");
  const Authority::Pair stranger = other.Sign("node2", "DNS:node2");
  EXPECT_THAT(
      Attach(door.address(), Read(stranger.certificate, stranger.key, authority_->certificate())),
      HasSubstr("does not accept this node's certificate"));
}

TEST_F(Tls, TheSecretIsAskedForAllTheSame) {
  Door door(Serve(Read(server_.certificate, server_.key, "")));
  net::Security security = Read("", "", authority_->certificate());
  security.secret = "another secret";
  EXPECT_THAT(Attach(door.address(), security), HasSubstr("does not know the secret"));
}

TEST_F(Tls, FilesAreCheckedAtTheStart) {
  const std::string& authority = authority_->certificate();
  EXPECT_THAT(ReadError(server_.certificate, "", ""), HasSubstr("needs --tls-key"));
  EXPECT_THAT(ReadError("", server_.key, ""), HasSubstr("needs --tls-cert"));
  EXPECT_THAT(ReadError("", "", server_.key), HasSubstr("holds no certificate"));
  EXPECT_THAT(ReadError(server_.certificate, authority, ""), HasSubstr("chmod 600"));
  EXPECT_THAT(ReadError("", "", folder_->path() + "/none.pem"), HasSubstr("--tls-ca"));
  EXPECT_THAT(ReadError("", "", "/dev/zero"), HasSubstr("--tls-ca /dev/zero is no regular file"));
  EXPECT_THAT(ReadError("/dev/zero", server_.key, ""), HasSubstr("is no regular file"));
  EXPECT_THAT(ReadError(server_.certificate, "/dev/zero", ""), HasSubstr("is no regular file"));
  const Authority::Pair node = authority_->Sign("other-key", "DNS:node");
  EXPECT_THAT(ReadError(server_.certificate, node.key, ""), HasSubstr("is not the key of"));
  chmod(node.key.c_str(), 0640);
  EXPECT_THAT(ReadError(node.certificate, node.key, ""), HasSubstr("chmod 600 " + node.key));
}

TEST_F(Tls, RandomBytesDoNotDisturb) {
  Door door(Serve(Read(server_.certificate, server_.key, "")));
  for (int i = 0; i < 50; ++i) {
    // A record of TLS that holds none.
    Exchange(door.port(), std::string("\x16\x03\x01\x00\x05", 5) + std::string(5, char('a' + i)));
  }
  EXPECT_TRUE(door.WaitFor("join_refused", "tls"));
  EXPECT_EQ(Attach(door.address(), Read("", "", authority_->certificate())), "");
}

}  // namespace
}  // namespace ddprun::testing
