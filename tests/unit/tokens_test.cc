// `ddprun tokens`: what is written, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "launcher/cli/tokens_writer.h"
#include "tests/unit/data_files.h"

namespace ddprun::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TokensCommandTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return folder_.path() + "/" + name; }
  std::string Text(const std::string& name, const std::string& text) {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }
  std::vector<uint32_t> Tokens(const std::string& name, int token_bytes) {
    std::ifstream file(Path(name), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    std::vector<uint32_t> tokens(bytes.size() / static_cast<size_t>(token_bytes));
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto t = static_cast<size_t>(token_bytes);
      tokens[i / t] |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * (i % t));
    }
    return tokens;
  }
  std::string Error(const TokensOptions& options, const std::string& output, bool force = false) {
    return std::string(WriteTokenFiles(options, output, force).status().message());
  }
  size_t FileCount() {
    const std::filesystem::directory_iterator all(folder_.path());
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  absl::Status Parse(const std::vector<std::string>& arguments) {
    return ParseCommandLine(arguments, "ddprun", {}).status();
  }

  DataFolder folder_;
};

TEST_F(TokensCommandTest, BytesAreTokensAndEachFileHasAnEnd) {
  TokensOptions options;
  options.inputs = {Text("a.txt", "ab\xff"), Text("b.txt", std::string("\0c", 2))};
  for (int token_bytes : {2, 4}) {
    options.token_bytes = token_bytes;
    const auto written = WriteTokenFiles(options, Path("out.bin"), token_bytes == 4);
    ASSERT_TRUE(written.ok()) << written.status();
    ASSERT_EQ(written->size(), 1u);
    EXPECT_EQ((*written)[0].tokens, 7u);
    EXPECT_EQ(Tokens("out.bin", token_bytes),
              (std::vector<uint32_t>{'a', 'b', 255, 256, 0, 'c', 256}));
  }
  EXPECT_EQ(FileCount(), 3u) << "no temporary file is left";
}

// Across the blocks in which it reads.
TEST_F(TokensCommandTest, TheTestSplitIsTheEndOfTheTokens) {
  std::string text(3'000'001, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 >> 3);
  TokensOptions options;
  options.inputs = {Text("a.txt", text), Text("b.txt", "end")};
  options.test_fraction = 0.25;
  const auto written = WriteTokenFiles(options, Path("text"), false);
  ASSERT_TRUE(written.ok()) << written.status();
  std::vector<uint32_t> all = Tokens("text/train.bin", 2);
  EXPECT_EQ(all.size(), 2'250'004u);
  EXPECT_EQ((*written)[0].tokens, all.size());
  const std::vector<uint32_t> test = Tokens("text/test.bin", 2);
  EXPECT_EQ(test.size(), 750'002u);
  all.insert(all.end(), test.begin(), test.end());
  std::vector<uint32_t> expected;
  for (const std::string& part : {text, std::string("end")}) {
    for (char c : part) expected.push_back(static_cast<uint8_t>(c));
    expected.push_back(256);
  }
  EXPECT_TRUE(all == expected);
}

TEST_F(TokensCommandTest, NothingIsReplacedUnlessForced) {
  TokensOptions options;
  options.inputs = {Text("a.txt", "text")};
  Text("out.bin", "precious");
  EXPECT_THAT(Error(options, Path("out.bin")), AllOf(HasSubstr("out.bin"), HasSubstr("--force")));
  EXPECT_EQ(std::filesystem::file_size(Path("out.bin")), 8u);
  EXPECT_EQ(Error(options, Path("out.bin"), true), "");
  EXPECT_EQ(std::filesystem::file_size(Path("out.bin")), 10u);
  options.test_fraction = 0.5;
  std::filesystem::create_directory(Path("text"));
  Text("text/test.bin", "precious");
  EXPECT_THAT(Error(options, Path("text")), HasSubstr("text/test.bin"));
  EXPECT_FALSE(std::filesystem::exists(Path("text/train.bin"))) << "both or none";
}

TEST_F(TokensCommandTest, BadInputIsNamedAndLeavesNothing) {
  TokensOptions options;
  options.inputs = {Text("a.txt", "text"), Path("missing.txt")};
  EXPECT_THAT(Error(options, Path("out.bin")), HasSubstr("missing.txt: cannot read"));
  options.inputs[1] = Text("empty.txt", "");
  EXPECT_THAT(Error(options, Path("out.bin")), HasSubstr("empty.txt: is empty"));
  options.inputs[1] = folder_.path();
  EXPECT_THAT(Error(options, Path("out.bin")), HasSubstr("not a regular file"));
  options.inputs.pop_back();
  options.test_fraction = 0.01;
  EXPECT_THAT(Error(options, Path("text")), HasSubstr("5 tokens cannot be divided so"));
  EXPECT_FALSE(std::filesystem::exists(Path("out.bin")));
  EXPECT_EQ(FileCount(), 2u);
}

TEST_F(TokensCommandTest, TheCommandLineIsChecked) {
  const auto options = ParseCommandLine(
      {"tokens", "a", "-o", "t", "b", "--test-fraction=0.1", "--type", "uint32"}, "ddprun", {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->command, Command::kTokens);
  EXPECT_EQ(options->tokens.inputs, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options->output, "t");
  EXPECT_EQ(options->tokens.token_bytes, 4);
  EXPECT_EQ(options->tokens.test_fraction, 0.1);
  const auto help = ParseCommandLine({"tokens", "--help"}, "ddprun", {});
  ASSERT_TRUE(help.ok()) << help.status();
  EXPECT_THAT(help->help, AllOf(HasSubstr("--test-fraction"), HasSubstr("--output")));
  const auto message = [&](const std::vector<std::string>& arguments) {
    return std::string(Parse(arguments).message());
  };
  EXPECT_THAT(message({"tokens", "-o", "x.bin"}), HasSubstr("tokens: of what?"));
  EXPECT_THAT(message({"tokens", "a"}), HasSubstr("--output: missing"));
  EXPECT_THAT(message({"tokens", "a", "-o", "x"}), HasSubstr("must end in .bin"));
  EXPECT_THAT(message({"tokens", "a", "-o", "x", "--test-fraction", "1"}),
              HasSubstr("between 0 and 1"));
  EXPECT_THAT(message({"tokens", "a", "-o", "x.bin", "--type", "int8"}),
              HasSubstr("uint16 or uint32"));
}

}  // namespace
}  // namespace ddprun::cli
