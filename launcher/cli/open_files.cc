#include "launcher/cli/open_files.h"

#include <sys/resource.h>

#include "absl/strings/str_cat.h"

namespace ddprun::cli {

uint64_t OpenFilesNeeded(uint32_t workers) {
  constexpr uint64_t kOwn = 64;
  constexpr uint64_t kForWorker = 2;
  return kOwn + kForWorker * workers;
}

absl::Status HaveOpenFiles(uint64_t needed) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return absl::OkStatus();
  if (files.rlim_max < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("ulimit -n: at most ", files.rlim_max, " files may be open here, and ", needed,
                     " are needed; raise the hard limit (ulimit -Hn) before ddprun, in "
                     "/etc/security/limits.conf or LimitNOFILE= of the service"));
  }
  files.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &files);
  return absl::OkStatus();
}

}  // namespace ddprun::cli
