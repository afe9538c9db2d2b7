// common/wire.c: what is written can be read back, whatever the bytes; what does not fit or is not
// valid is refused.
#include "common/wire.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace {

constexpr size_t kRefused = static_cast<size_t>(-1);

std::string AllBytes() {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

std::string Escape(const std::string& text) {
  std::string out(2 * text.size(), '\0');
  out.resize(ddprun_wire_escape(text.data(), text.size(), out.data(), out.size()));
  return out;
}

std::string Unescape(const std::string& text) {
  std::string out(text.size(), '\0');
  out.resize(ddprun_wire_unescape(text.data(), text.size(), out.data(), out.size()));
  return out;
}

std::string Encode(const std::string& bytes) {
  std::string out((bytes.size() + 2) / 3 * 4, '\0');
  out.resize(ddprun_wire_base64_encode(bytes.data(), bytes.size(), out.data(), out.size()));
  return out;
}

size_t DecodedSize(const std::string& text, std::string* bytes = nullptr) {
  std::string out(text.size(), '\0');
  const size_t size = ddprun_wire_base64_decode(text.data(), text.size(), out.data(), out.size());
  if (bytes != nullptr && size != kRefused) *bytes = out.substr(0, size);
  return size;
}

TEST(WireEscape, AllBytesComeBack) {
  const std::string escaped = Escape(AllBytes());
  EXPECT_EQ(escaped.find('\n'), std::string::npos);
  EXPECT_EQ(escaped.find('\r'), std::string::npos);
  EXPECT_EQ(escaped.size(), 256u + 3u);
  EXPECT_EQ(Unescape(escaped), AllBytes());
}

TEST(WireEscape, WritesTheFormsOfTheProtocol) {
  EXPECT_EQ(Escape("a\\b\nc\rd"), "a\\\\b\\nc\\rd");
  EXPECT_EQ(Escape(""), "");
}

TEST(WireEscape, RefusesABufferThatIsOneByteTooSmall) {
  const std::string text = "ab\n";
  char out[4];
  EXPECT_EQ(ddprun_wire_escape(text.data(), text.size(), out, 4), 4u);
  EXPECT_EQ(ddprun_wire_escape(text.data(), text.size(), out, 3), kRefused);
  EXPECT_EQ(ddprun_wire_escape(text.data(), text.size(), out, 0), kRefused);
  EXPECT_EQ(ddprun_wire_unescape("a\\nb", 4, out, 3), 3u);
  EXPECT_EQ(ddprun_wire_unescape("a\\nb", 4, out, 2), kRefused);
}

TEST(WireEscape, UnknownEscapesKeepTheCharacter) {
  EXPECT_EQ(Unescape("\\q\\t"), "qt");
  EXPECT_EQ(Unescape("end\\"), "end\\");
}

TEST(WireEscape, UnescapesInPlace) {
  std::string text = Escape(AllBytes());
  const size_t size = ddprun_wire_unescape(text.data(), text.size(), text.data(), text.size());
  EXPECT_EQ(text.substr(0, size), AllBytes());
}

TEST(WireBase64, MatchesTheVectorsOfRfc4648) {
  EXPECT_EQ(Encode(""), "");
  EXPECT_EQ(Encode("f"), "Zg==");
  EXPECT_EQ(Encode("fo"), "Zm8=");
  EXPECT_EQ(Encode("foo"), "Zm9v");
  EXPECT_EQ(Encode("foob"), "Zm9vYg==");
  EXPECT_EQ(Encode("fooba"), "Zm9vYmE=");
  EXPECT_EQ(Encode("foobar"), "Zm9vYmFy");
  EXPECT_EQ(Encode("\xff\xfe\xfb\xef\xbe"), "//77774=");
}

TEST(WireBase64, BytesOfEveryLengthComeBack) {
  std::mt19937 random(1);
  for (size_t size = 0; size < 300; ++size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    std::string back;
    ASSERT_EQ(DecodedSize(Encode(bytes), &back), size);
    ASSERT_EQ(back, bytes);
  }
}

TEST(WireBase64, TheLargestValueFitsIntoAPacket) {
  const std::string bytes(kDdprunValueBytesMax, '\xa5');
  std::string back;
  EXPECT_LT(Encode(bytes).size(), static_cast<size_t>(kDdprunPacketBytesMax));
  EXPECT_EQ(DecodedSize(Encode(bytes), &back), bytes.size());
  EXPECT_EQ(back, bytes);
}

TEST(WireBase64, RefusesABufferThatIsOneByteTooSmall) {
  char out[8];
  EXPECT_EQ(ddprun_wire_base64_encode("foob", 4, out, 8), 8u);
  EXPECT_EQ(ddprun_wire_base64_encode("foob", 4, out, 7), kRefused);
  EXPECT_EQ(ddprun_wire_base64_decode("Zm9vYg==", 8, out, 4), 4u);
  EXPECT_EQ(ddprun_wire_base64_decode("Zm9vYg==", 8, out, 3), kRefused);
}

TEST(WireBase64, RefusesWhatIsNotBase64) {
  for (const char* text : {"Zg", "Zg=", "Zg===", "Z===", "====", "Zg==Zg==", "Zm=v", "Zm9v!m9v",
                           "Zm 9", "Zm9v\n", "Zh==", "Zm9="}) {
    EXPECT_EQ(DecodedSize(text), kRefused) << text;
  }
  EXPECT_EQ(DecodedSize(std::string("Zm\0v", 4)), kRefused);
}

}  // namespace
