// `ddprun tokens`: files of tokens from text.
#include <cinttypes>
#include <cstdio>

#include "launcher/cli/commands.h"
#include "launcher/cli/errors.h"
#include "launcher/cli/tokens_writer.h"

namespace ddprun::cli {

int RunTokens(const Options& options) {
  const auto written = WriteTokenFiles(options.tokens, options.output, options.force);
  if (!written.ok()) {
    PrintError(written.status());
    const bool can_be_typed_better =
        absl::IsInvalidArgument(written.status()) || absl::IsAlreadyExists(written.status());
    return can_be_typed_better ? kExitBadUsage : kExitInternal;
  }
  for (const WrittenTokens& file : *written) {
    std::printf("%s: %" PRIu64 " tokens\n", file.path.c_str(), file.tokens);
  }
  std::printf("[model] vocab_size = %" PRIu32 "%s\n", kByteVocabulary,
              options.tokens.token_bytes == 4 ? ", [data] token_type = \"uint32\"" : "");
  return 0;
}

}  // namespace ddprun::cli
