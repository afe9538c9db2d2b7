#include "worker/data/token_file.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// A loop without exits over a block is one that the compiler vectorises.
constexpr int64_t kBlock = 1 << 14;

template <typename T>
T LargestOf(const T* tokens, int64_t count) {
  T largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, tokens[i]);
  return largest;
}

template <typename T>
int64_t FirstAtLeast(const T* tokens, int64_t count, int64_t limit) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    if (LargestOf(tokens + begin, end - begin) < limit) continue;
    return std::find_if(tokens + begin, tokens + end, [&](T token) { return token >= limit; }) -
           tokens;
  }
  return count;
}

// Calls `function` with the tokens in their type. Mapped files begin at a page.
template <typename Function>
auto WithTokens(const MappedFile& file, int token_bytes, const Function& function) {
  return token_bytes == 2 ? function(reinterpret_cast<const uint16_t*>(file.data()))
                          : function(reinterpret_cast<const uint32_t*>(file.data()));
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, int token_bytes) {
  absl::StatusOr<std::shared_ptr<const MappedFile>> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  if ((*file)->size() % token_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", (*file)->size(), " bytes are no whole number of uint",
                     8 * token_bytes, " tokens; copy the file again, or set [data] token_type"));
  }
  return TokenFile(*std::move(file), token_bytes);
}

void TokenFile::Read(int64_t begin, int64_t count, int64_t* out) const {
  WithTokens(*file_, token_bytes_, [&](const auto* tokens) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(tokens[begin + i]);
    return 0;
  });
}

int64_t TokenFile::LargestToken() const {
  return WithTokens(*file_, token_bytes_, [&](const auto* tokens) {
    return static_cast<int64_t>(LargestOf(tokens, tokens_));
  });
}

int64_t TokenFile::FindAtLeast(int64_t limit) const {
  return WithTokens(*file_, token_bytes_,
                    [&](const auto* tokens) { return FirstAtLeast(tokens, tokens_, limit); });
}

}  // namespace ddprun
