#include "tests/unit/ckpt_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checksum.h"
#include "common/safetensors.h"

namespace ddprun::cli {

std::string FloatBytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string TensorFile(const std::vector<TestTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorInfo> infos;
  std::map<std::string, std::string> data;
  for (const TestTensor& tensor : tensors) {
    infos.push_back({tensor.name, tensor.dtype, tensor.shape});
    data[tensor.name] = tensor.data;
  }
  std::string bytes = *BuildSafetensorsHeader(&infos, metadata);
  for (const TensorInfo& info : infos) {
    EXPECT_EQ(data[info.name].size(), info.bytes()) << info.name;
    bytes += data[info.name];
  }
  return bytes;
}

std::string ModelFile(float first) {
  return TensorFile({{"conv.weight", "F32", {2, 2}, FloatBytes({first, 2, 3, 4})},
                     {"bn.num_batches_tracked", "I64", {}, std::string("\7\0\0\0\0\0\0\0", 8)}},
                    {{"format", "pt"}});
}

void WriteCheckpoint(Folder& folder, uint64_t step,
                     const std::map<std::string, std::string>& more) {
  std::map<std::string, std::string> files = more;
  if (!more.contains("model-0-of-2.safetensors")) {
    files.try_emplace("model.safetensors", ModelFile(static_cast<float>(step)));
  }
  files["trainer_state.json"] =
      absl::StrCat(R"({"format": 1, "step": )", step, R"(, "epoch": 3, "config": {"a": 1}})");
  const std::string path = absl::StrCat("runs/job/checkpoints/step-", step);
  std::vector<std::string> listed;
  for (const auto& [name, bytes] : files) {
    folder.Write(path + "/" + name, bytes);
    listed.push_back(absl::StrCat(R"({"name":")", name, R"(","bytes":)", bytes.size(),
                                  R"(,"xxh3_128":")", HashHex(Xxh3(bytes.data(), bytes.size())),
                                  "\"}"));
  }
  folder.Write(path + "/manifest.json",
               absl::StrCat(R"({"format":1,"job_id":"job","generation":2,"step":)", step,
                            R"(,"world_size":4,"files":[)", absl::StrJoin(listed, ","), "]}"));
  folder.Write("runs/job/job.json", "{}");
  (void)symlink("job", (folder / "runs/latest").c_str());
}

std::vector<float> FloatsOf(const std::string& path, const std::string& name) {
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  const TensorInfo* tensor = file.ok() ? file->Find(name) : nullptr;
  if (tensor == nullptr || tensor->dtype != "F32") {
    ADD_FAILURE() << path << " has no F32 tensor " << name;
    return {};
  }
  std::vector<float> values(tensor->bytes() / sizeof(float));
  memcpy(values.data(), file->Data(*tensor), tensor->bytes());
  return values;
}

}  // namespace ddprun::cli
