// `ddprun doctor`.
#include <cstdio>

#include "launcher/cli/commands.h"

namespace ddprun::cli {

int RunDoctor(const Options&, const Surroundings&) {
  std::fputs("ddprun: doctor: nothing is looked at yet\n", stderr);
  return kExitInternal;
}

}  // namespace ddprun::cli
