// Secrets, proofs and names: what is let in, byte by byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "launcher/net/input_file.h"
#include "launcher/net/proof.h"
#include "launcher/net/secret.h"
#include "launcher/net/text.h"

namespace ddprun::net {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SecretFile : public ::testing::Test {
 protected:
  SecretFile() {
    std::string name = (std::filesystem::temp_directory_path() / "ddprun-secret-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
  }
  ~SecretFile() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& text, mode_t mode) {
    const std::string path = folder_ + "/secret";
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  static std::string Error(const absl::StatusOr<std::string>& result) {
    return result.ok() ? "" : std::string(result.status().message());
  }
  std::string folder_;
};

TEST_F(SecretFile, IsReadWithoutItsNewline) {
  EXPECT_EQ(*ReadSecret(nullptr, File("correct horse\n", 0600).c_str()), "correct horse");
  EXPECT_EQ(*ReadSecret(nullptr, File("correct horse", 0400).c_str()), "correct horse");
  EXPECT_EQ(*ReadSecret(nullptr, File("correct horse\n\n", 0600).c_str()), "correct horse\n");
}

TEST_F(SecretFile, ThatOthersCanReadOrWriteIsRefusedWithTheFix) {
  for (mode_t mode : {0640, 0604, 0620, 0602, 0610, 0644}) {
    const std::string path = File("correct horse", mode);
    const std::string error = Error(ReadSecret(nullptr, path.c_str()));
    EXPECT_THAT(error, HasSubstr("DDPRUN_SECRET_FILE " + path)) << mode;
    EXPECT_THAT(error, HasSubstr("chmod 600 " + path)) << mode;
    EXPECT_THAT(error, Not(HasSubstr("horse"))) << mode;
  }
  EXPECT_THAT(Error(ReadSecret(nullptr, File("correct horse", 0644).c_str())),
              HasSubstr("(mode 0644)"));
}

TEST_F(SecretFile, EmptyShortLongMissingOrNoFileIsRefused) {
  EXPECT_THAT(Error(ReadSecret(nullptr, File("", 0600).c_str())), HasSubstr("is empty"));
  EXPECT_THAT(Error(ReadSecret(nullptr, File("\n", 0600).c_str())), HasSubstr("is empty"));
  EXPECT_THAT(Error(ReadSecret(nullptr, File("1234567\n", 0600).c_str())), HasSubstr("7 bytes"));
  EXPECT_THAT(Error(ReadSecret(nullptr, File(std::string(5000, 'x'), 0600).c_str())),
              HasSubstr("more than 4096"));
  EXPECT_THAT(Error(ReadSecret(nullptr, (folder_ + "/none").c_str())),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(Error(ReadSecret(nullptr, folder_.c_str())), HasSubstr("no regular file"));
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(Error(ReadSecret(nullptr, fifo.c_str())), HasSubstr("no regular file"));
}

TEST(Secret, OfTheEnvironment) {
  EXPECT_EQ(*ReadSecret(nullptr, nullptr), "");
  EXPECT_EQ(*ReadSecret("correct horse", nullptr), "correct horse");
  EXPECT_FALSE(ReadSecret("", nullptr).ok());
  EXPECT_FALSE(ReadSecret(nullptr, "").ok());
  EXPECT_FALSE(ReadSecret("correct horse", "/file").ok());
}

ProofSubject Subject() {
  return {"job", "node0", "abc", std::string(kNonceBytes, 'a'), std::string(kNonceBytes, 'c'), 42};
}

TEST(Proof, IsBoundToEverythingThatItSpeaksOf) {
  const std::string proof = AgentProof("correct horse", Subject());
  EXPECT_EQ(proof.size(), kProofBytes);
  EXPECT_TRUE(SameProof(proof, AgentProof("correct horse", Subject())));
  EXPECT_FALSE(SameProof(proof, AgentProof("correct horsf", Subject())));
  EXPECT_FALSE(SameProof(proof, CoordinatorProof("correct horse", Subject())));
  EXPECT_FALSE(SameProof(proof, ""));
  const std::vector<std::function<void(ProofSubject&)>> changes = {
      [](ProofSubject& s) { s.job_id = "job2"; },
      [](ProofSubject& s) { s.node = "node1"; },
      [](ProofSubject& s) { s.incarnation = "abd"; },
      [](ProofSubject& s) { s.agent_nonce[31] = 'b'; },
      [](ProofSubject& s) { s.coordinator_nonce[0] = 'b'; },
      [](ProofSubject& s) { s.time_ns = 43; },
      // The same bytes with another boundary between the fields.
      [](ProofSubject& s) { s.job_id = "jobn", s.node = "ode0"; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    ProofSubject other = Subject();
    changes[i](other);
    EXPECT_FALSE(SameProof(proof, AgentProof("correct horse", other))) << i;
  }
}

TEST(Proof, IsEmptyWithoutASecret) {
  EXPECT_EQ(AgentProof("", Subject()), "");
  EXPECT_EQ(CoordinatorProof("", Subject()), "");
}

TEST(Proof, NoncesDiffer) {
  EXPECT_EQ(MakeNonce().size(), kNonceBytes);
  EXPECT_NE(MakeNonce(), MakeNonce());
}

TEST(Text, NamesAreShortAndPlain) {
  for (const char* name : {"a", "node-1.rack_2", "A9"}) EXPECT_TRUE(IsName(name)) << name;
  EXPECT_TRUE(IsName(std::string(64, 'x')));
  for (const char* name : {"", "a b", "a/b", "a\n", "\x1b[31m", "é", "a:1"}) {
    EXPECT_FALSE(IsName(name)) << name;
  }
  EXPECT_FALSE(IsName(std::string(65, 'x')));
  EXPECT_FALSE(IsName(std::string("a\0b", 3)));
}

TEST(Text, WhatComesFromOutsideMovesNoCursor) {
  EXPECT_EQ(Shown("plain text"), "plain text");
  EXPECT_EQ(Shown("größer – 3 °C …"), "größer – 3 °C …");
  EXPECT_EQ(Shown("\x1b[2J\n\t\x7f"), "\\x1b[2J\\x0a\\x09\\x7f");
  EXPECT_EQ(Shown("\xc2\x9b\xff\xe2\x80"), "\\xc2\\x9b\\xff\\xe2\\x80");
  EXPECT_EQ(Shown("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left override
  EXPECT_EQ(Shown(std::string(1000, 'x')).size(), kShownBytesMax + strlen("…"));
}

// Whatever is named: a device without an end is not read, a FIFO is not waited for.
TEST_F(SecretFile, InputFilesAreRegularAndBounded) {
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/zero"), fifo, folder_}) {
    EXPECT_EQ(Error(ReadInputFile(path, "--hosts @" + path, "list of hosts", 100)),
              "--hosts @" + path + " is no regular file");
    EXPECT_EQ(Error(ReadPrivateFile(path, "--tls-key", "key", 100)),
              "--tls-key " + path + " is no regular file");
  }
  EXPECT_EQ(*ReadInputFile(File(std::string(100, 'a'), 0644), "--tls-ca FILE", "certificate", 100),
            std::string(100, 'a'));
  EXPECT_EQ(
      Error(ReadInputFile(File(std::string(101, 'a'), 0644), "--tls-ca FILE", "certificate", 100)),
      "--tls-ca FILE has more than 100 bytes, which is no certificate: is it the right file?");
  EXPECT_THAT(Error(ReadInputFile(folder_ + "/none", "--hosts @none", "list of hosts", 100)),
              HasSubstr("cannot read the list of hosts: No such file"));
}

}  // namespace
}  // namespace ddprun::net
