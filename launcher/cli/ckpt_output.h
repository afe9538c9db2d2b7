// Safetensors files as they are written by `ddprun ckpt`: under a temporary name, fsync, then the
// name; so that nobody ever sees half a file, and nothing is replaced that was not meant to be.
//
// One thread. A process that is killed meanwhile leaves FILE.tmp.<pid> behind.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/ckpt_weights.h"

namespace ddprun::cli {

class StagedFile {
 public:
  static absl::StatusOr<StagedFile> Create(const std::string& path);
  StagedFile(StagedFile&& other) noexcept;
  StagedFile& operator=(StagedFile&&) = delete;
  ~StagedFile();  // what was not published is removed

  absl::Status Append(std::string_view bytes);
  absl::Status Sync();
  // After Sync. ALREADY_EXISTS where there is a file and `replace` is false.
  absl::Status Publish(bool replace);
  const std::string& path() const { return path_; }

 private:
  StagedFile(std::string path, std::string temporary, int fd);
  std::string path_;
  std::string temporary_;  // "": published
  int fd_ = -1;
};

struct OutputTensor {
  std::string name;
  std::string dtype;  // to which the weight is converted
  const Weight* weight = nullptr;
};

// Where the tensors go.
struct OutputFiles {
  std::string path;  // FILE.safetensors
  uint32_t shards = 1;
  bool replace = false;
  std::map<std::string, std::string> metadata;
};

// Writes the tensors to one file, or to shards beside each other and their index. Returns the paths
// written, the index last. ALREADY_EXISTS names a file that is there already: nothing is written.
// OUT_OF_RANGE names the tensor that does not fit its type.
absl::StatusOr<std::vector<std::string>> WriteTensors(const std::vector<OutputTensor>& tensors,
                                                      const OutputFiles& files);

}  // namespace ddprun::cli
