// Packets: what is written is read back; what is no packet is refused with a reason.
#include "common/packet.h"

#include <gtest/gtest.h>

#include <limits>

namespace ddprun {
namespace {

TEST(Packet, ReadsBackWhatWasWritten) {
  const std::string nasty("a\\n\nb\r=\0\xff", 9);
  const std::string bytes = PacketWriter("Kind")
                                .Text("NASTY", nasty)
                                .Text("EMPTY", "")
                                .Integer("LOW", std::numeric_limits<int64_t>::min())
                                .Unsigned("HIGH", std::numeric_limits<uint64_t>::max())
                                .Number("TENTH", 0.1)
                                .Bytes("BINARY", nasty)
                                .FinishWithBody("raw\n\nTYPE=x\n");
  std::string problem;
  const std::optional<Packet> packet = Packet::Parse(bytes, &problem);
  ASSERT_TRUE(packet) << problem;
  EXPECT_EQ(packet->type(), "Kind");
  EXPECT_EQ(packet->Text("NASTY"), nasty);
  EXPECT_EQ(packet->Text("EMPTY"), "");
  EXPECT_EQ(packet->Integer("LOW"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(packet->Unsigned("HIGH"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(packet->Number("TENTH"), 0.1);
  EXPECT_EQ(packet->Bytes("BINARY"), nasty);
  EXPECT_EQ(packet->body(), "raw\n\nTYPE=x\n");
  EXPECT_EQ(packet->fields().size(), 6u);
}

TEST(Packet, BytesOfEveryLengthSurvive) {
  std::string value;
  for (int size = 0; size < 100; ++size) {
    const std::string bytes = PacketWriter("V").Bytes("B", value).Finish();
    EXPECT_EQ(Packet::Parse(bytes, nullptr)->Bytes("B"), value) << size;
    value.push_back(static_cast<char>(size * 37));
  }
}

TEST(Packet, WithoutEmptyLineThereIsNoBodyAndWithOneItMayBeEmpty) {
  EXPECT_FALSE(Packet::Parse("TYPE=A\nK=1\n", nullptr)->body());
  EXPECT_EQ(Packet::Parse("TYPE=A\nK=1\n\n", nullptr)->body(), "");
}

TEST(Packet, MissingAndMalformedValuesAreNothing) {
  const std::optional<Packet> packet =
      Packet::Parse("TYPE=A\nN=12x\nM=\nNEG=-1\nB=!!\nTWICE=1\nTWICE=2\n", nullptr);
  ASSERT_TRUE(packet);
  EXPECT_FALSE(packet->Text("GONE"));
  EXPECT_FALSE(packet->Integer("N"));
  EXPECT_FALSE(packet->Integer("M"));
  EXPECT_FALSE(packet->Unsigned("NEG"));
  EXPECT_FALSE(packet->Number("N"));
  EXPECT_FALSE(packet->Bytes("B"));
  EXPECT_EQ(packet->Integer("TWICE"), 1);
  EXPECT_TRUE(packet->Has("M"));
  EXPECT_FALSE(packet->Has("GONE"));
}

TEST(Packet, RefusesWhatIsNone) {
  for (std::string_view bytes :
       {"", "\n", "TYPE\n", "TYPE=\n", "KEY=1\nTYPE=A\n", "TYPE=A", "TYPE=A\nnot-a-key=1\n",
        "TYPE=A\nno equals\n", "TYPE=A\n=1\n", "TYPE=A\nK=1"}) {
    std::string problem;
    EXPECT_FALSE(Packet::Parse(bytes, &problem)) << bytes;
    EXPECT_NE(problem, "") << bytes;
  }
}

}  // namespace
}  // namespace ddprun
