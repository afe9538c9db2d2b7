// Which boot of which machine this is: equal texts mean that two processes share a machine (and its
// sleep). Any thread.
#pragma once

#include <string>

#include "common/files.h"

namespace ddprun {

// "" where the kernel does not tell.
inline std::string BootId() {
  const absl::StatusOr<std::string> text =
      PosixFileSystem().ReadFile("/proc/sys/kernel/random/boot_id");
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

}  // namespace ddprun
