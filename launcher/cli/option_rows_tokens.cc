// The options of `ddprun tokens`; -o and --force stand among those of `ddprun ckpt`.
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "launcher/cli/app.h"
#include "launcher/cli/option_rows.h"

namespace ddprun::cli {

OptionRowList TokensRows() {
  return {
      {"--type", "uint16|uint32", kForTokens, kGroupTokens,
       "How a token is written ([data] token_type). Default uint16",
       [](OptionText v, Options* o) -> absl::Status {
         if (v != "uint16" && v != "uint32") {
           return absl::InvalidArgumentError("give uint16 or uint32");
         }
         o->tokens.token_bytes = v == "uint16" ? 2 : 4;
         return absl::OkStatus();
       }},
      {"--test-fraction", "SHARE", kForTokens, kGroupTokens,
       "OUTPUT is a folder: test.bin gets this share of the tokens, from the end, train.bin the "
       "rest",
       [](OptionText v, Options* o) -> absl::Status {
         double share = 0;
         if (!absl::SimpleAtod(v, &share) || !(share > 0) || !(share < 1)) {
           return absl::InvalidArgumentError("give a number between 0 and 1, for example 0.1");
         }
         o->tokens.test_fraction = share;
         return absl::OkStatus();
       }},
  };
}

absl::Status CheckTokens(const Options& o) {
  if (o.tokens.inputs.empty()) {
    return absl::InvalidArgumentError("tokens: of what? ddprun tokens FILE… -o FILE.bin");
  }
  if (o.output.empty()) {
    return absl::InvalidArgumentError(
        "--output: missing; where to write: -o FILE.bin, or -o FOLDER --test-fraction 0.1");
  }
  if (o.tokens.test_fraction == 0 && !absl::EndsWith(o.output, ".bin")) {
    return absl::InvalidArgumentError(
        "--output " + o.output +
        ": the file's name must end in .bin (train.bin, test.bin); a folder needs --test-fraction");
  }
  return absl::OkStatus();
}

}  // namespace ddprun::cli
