#include "launcher/cli/tokens_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "launcher/cli/staged_file.h"

namespace ddprun::cli {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

absl::Status BadInput(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<uint64_t> InputBytes(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return BadInput(path, absl::StrCat("cannot read: ", strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return BadInput(path, "not a regular file");
  if (info.st_size == 0) return BadInput(path, "is empty; leave it out");
  return static_cast<uint64_t>(info.st_size);
}

// Takes the tokens in order: each file gets as many as it shall hold.
class TokenSink {
 public:
  TokenSink(std::vector<StagedFile> files, std::vector<WrittenTokens> plan, int token_bytes)
      : files_(std::move(files)), plan_(std::move(plan)), token_bytes_(token_bytes) {}

  absl::Status Take(const uint8_t* bytes, size_t count) {
    return Write(count, [bytes](size_t i) { return uint32_t{bytes[i]}; });
  }
  absl::Status TakeEnd() {
    return Write(1, [](size_t) { return kEndOfFileToken; });
  }
  absl::Status Publish(bool replace) {
    for (StagedFile& file : files_) {
      if (absl::Status status = file.Sync(); !status.ok()) return status;
    }
    for (StagedFile& file : files_) {
      if (absl::Status status = file.Publish(replace); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Write(size_t count, const std::function<uint32_t(size_t)>& token) {
    size_t begin = 0;
    while (begin < count) {
      if (taken_ == plan_[file_].tokens) {
        ++file_;
        taken_ = 0;
      }
      const size_t end = begin + static_cast<size_t>(std::min<uint64_t>(
                                     count - begin, plan_[file_].tokens - taken_));
      text_.clear();
      for (size_t i = begin; i < end; ++i) {
        const uint32_t value = token(i);
        for (int shift = 0; shift < 8 * token_bytes_; shift += 8)
          text_.push_back(static_cast<char>(value >> shift));
      }
      if (absl::Status status = files_[file_].Append(text_); !status.ok()) return status;
      taken_ += end - begin;
      begin = end;
    }
    return absl::OkStatus();
  }

  std::vector<StagedFile> files_;
  const std::vector<WrittenTokens> plan_;
  const int token_bytes_;
  size_t file_ = 0;
  uint64_t taken_ = 0;  // of the file
  std::string text_;
};

absl::Status CopyInput(const std::string& path, uint64_t bytes, TokenSink* sink) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return BadInput(path, absl::StrCat("cannot open: ", strerror(errno)));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  std::vector<uint8_t> chunk(kChunkBytes);
  uint64_t seen = 0;
  while (true) {
    const ssize_t count = read(fd, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return BadInput(path, absl::StrCat("cannot read: ", strerror(errno)));
    if (count == 0) break;
    seen += static_cast<uint64_t>(count);
    if (seen > bytes) break;
    absl::Status status = sink->Take(chunk.data(), static_cast<size_t>(count));
    if (!status.ok()) return status;
  }
  if (seen != bytes) return BadInput(path, "is being changed while it is read");
  return sink->TakeEnd();
}

// What is written where, of `total` tokens.
absl::StatusOr<std::vector<WrittenTokens>> PlanFiles(const TokensOptions& options,
                                                     const std::string& output, uint64_t total) {
  if (options.test_fraction == 0) return std::vector<WrittenTokens>{{output, total}};
  const auto test =
      static_cast<uint64_t>(std::llround(static_cast<double>(total) * options.test_fraction));
  if (test == 0 || test == total) {
    return absl::InvalidArgumentError(
        absl::StrCat("--test-fraction: ", total,
                     " tokens cannot be divided so; one of both files would be "
                     "empty"));
  }
  return std::vector<WrittenTokens>{{JoinPath(output, "train.bin"), total - test},
                                    {JoinPath(output, "test.bin"), test}};
}

}  // namespace

absl::StatusOr<std::vector<WrittenTokens>> WriteTokenFiles(const TokensOptions& options,
                                                           const std::string& output,
                                                           bool replace) {
  uint64_t total = 0;
  std::vector<uint64_t> sizes;
  for (const std::string& path : options.inputs) {
    const absl::StatusOr<uint64_t> bytes = InputBytes(path);
    if (!bytes.ok()) return bytes.status();
    sizes.push_back(*bytes);
    total += *bytes + 1;
  }
  absl::StatusOr<std::vector<WrittenTokens>> plan = PlanFiles(options, output, total);
  if (!plan.ok()) return plan.status();
  if (options.test_fraction > 0) {
    if (absl::Status status = PosixFileSystem().MakeDirectories(output); !status.ok())
      return status;
  }
  std::vector<StagedFile> files;
  for (const WrittenTokens& file : *plan) {
    if (!replace && access(file.path.c_str(), F_OK) == 0) return ThereAlready(file.path);
    absl::StatusOr<StagedFile> staged = StagedFile::Create(file.path);
    if (!staged.ok()) return staged.status();
    files.push_back(*std::move(staged));
  }
  TokenSink sink(std::move(files), *plan, options.token_bytes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    absl::Status status = CopyInput(options.inputs[i], sizes[i], &sink);
    if (!status.ok()) return status;
  }
  if (absl::Status status = sink.Publish(replace); !status.ok()) return status;
  return plan;
}

}  // namespace ddprun::cli
