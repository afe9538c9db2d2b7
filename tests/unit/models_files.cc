#include "tests/unit/models_files.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/safetensors.h"
#include "worker/checkpoint/tensor_format.h"

namespace ddprun {

void WriteTensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                  const std::map<std::string, std::string>& metadata) {
  std::vector<TensorInfo> infos = *TensorInfos(tensors);
  const std::string head = *BuildSafetensorsHeader(&infos, metadata);
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& item : tensors) by_name[item.name] = item.tensor.detach().contiguous();
  std::ofstream file(path, std::ios::binary);
  file << head;
  for (const TensorInfo& info : infos) {
    file.write(static_cast<const char*>(by_name[info.name].const_data_ptr()),
               static_cast<std::streamsize>(info.bytes()));
  }
  ASSERT_TRUE(file.good()) << path;
}

std::string RunPython(const std::string& script, const std::string& arguments) {
  const std::string command =
      absl::StrCat(std::getenv("DDPRUN_PYTHON"), " ", std::getenv("DDPRUN_SOURCE"),
                   "/tests/python/", script, " ", arguments, " 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  return absl::StrCat("exit ", WIFEXITED(status) ? WEXITSTATUS(status) : -1, "\n", output);
}

}  // namespace ddprun
