// manifest.json read back: one that is damaged, or has other kinds of values, is an error.
#include "common/checkpoint_manifest.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(CheckpointManifestTest, WhatWasWrittenIsRead) {
  const auto manifest = ParseManifest(
      R"({"format":1,"job_id":"j","step":7,"files":[{"name":"a b.bin","bytes":12,"xxh3_128":"0f"}]})");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->job_id, "j");
  EXPECT_EQ(manifest->step, 7u);
  ASSERT_EQ(manifest->files.size(), 1u);
  EXPECT_EQ(manifest->files[0].name, "a b.bin");
  EXPECT_EQ(manifest->files[0].bytes, 12u);
}

TEST(CheckpointManifestTest, OtherKindsOfValuesAreErrors) {
  for (
      const char* text : {
          "",
          "[]",
          "{",
          R"({"format":1})",
          R"({"format":"1","job_id":"j","step":7,"files":[]})",
          R"({"format":2,"job_id":"j","step":7,"files":[]})",
          R"({"format":1,"job_id":7,"step":7,"files":[]})",
          R"({"format":1,"job_id":"j","step":-7,"files":[]})",
          R"({"format":1,"job_id":"j","step":"7","files":[]})",
          R"({"format":1,"job_id":"j","step":7,"files":{}})",
          R"({"format":1,"job_id":"j","step":7,"files":[3]})",
          R"({"format":1,"job_id":"j","step":7,"files":[{"name":3,"bytes":1,"xxh3_128":"0"}]})",
          R"({"format":1,"job_id":"j","step":7,"files":[{"name":"a","bytes":"1","xxh3_128":"0"}]})",
          R"({"format":1,"job_id":"j","step":7,"files":[{"name":"a","bytes":1,"xxh3_128":0}]})",
          R"({"format":1,"job_id":"j","step":7,"files":[{"name":"../a","bytes":1,"xxh3_128":"0"}]})",
          R"({"format":1,"job_id":"j","step":7,"files":[{"name":"..","bytes":1,"xxh3_128":"0"}]})",
      }) {
    EXPECT_FALSE(ParseManifest(text).ok()) << text;
  }
}

TEST(CheckpointManifestTest, ShardNamesStayInTheirFolder) {
  EXPECT_TRUE(IsShardName("model-1-of-2.safetensors"));
  for (const char* name : {"", ".", "..", "a/b", "a\nb", "\xFF", "a\x7F"}) {
    EXPECT_FALSE(IsShardName(name)) << name;
  }
}

}  // namespace
}  // namespace ddprun
