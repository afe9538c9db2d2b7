// Token files from text, for [data] kind tokens: each byte is a token (0 to 255), and each file
// ends with kEndOfFileToken, so that a model can learn where one ends. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/options.h"

namespace ddprun::cli {

inline constexpr uint32_t kEndOfFileToken = 256;
inline constexpr uint32_t kByteVocabulary = 257;

struct WrittenTokens {
  std::string path;
  uint64_t tokens = 0;
};

// Reads the inputs one after the other and writes FILE.bin, or train.bin and test.bin of a folder,
// which is made where it is missing. All files or none. ALREADY_EXISTS without --force;
// INVALID_ARGUMENT names an input that cannot be read, is empty or changes meanwhile.
absl::StatusOr<std::vector<WrittenTokens>> WriteTokenFiles(const TokensOptions& options,
                                                           const std::string& output, bool replace);

}  // namespace ddprun::cli
