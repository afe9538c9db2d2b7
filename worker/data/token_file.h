// A file of tokens: little-endian uint16 or uint32, nothing else. Mapped, so that all ranks of a
// node share its pages and a file may be larger than memory. Immutable; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/mapped_file.h"

namespace ddprun {

class TokenFile {
 public:
  // `token_bytes` is 2 or 4. NOT_FOUND when there is no such file; INVALID_ARGUMENT names the file,
  // and what is wrong with it.
  static absl::StatusOr<TokenFile> Open(const std::string& path, int token_bytes);

  int64_t tokens() const { return tokens_; }
  const std::string& path() const { return file_->path(); }
  int token_bytes() const { return token_bytes_; }
  // Tokens [begin, begin + count).
  void Read(int64_t begin, int64_t count, int64_t* out) const;
  int64_t LargestToken() const;
  // The place of the first token of at least `limit`; tokens() when there is none.
  int64_t FindAtLeast(int64_t limit) const;

 private:
  TokenFile(std::shared_ptr<const MappedFile> file, int token_bytes)
      : file_(std::move(file)), token_bytes_(token_bytes), tokens_(file_->size() / token_bytes) {}

  std::shared_ptr<const MappedFile> file_;
  int token_bytes_;
  int64_t tokens_;
};

}  // namespace ddprun
