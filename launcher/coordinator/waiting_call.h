// In which call a rank waits for the others, as far as its stack tells. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ddprun::coordinator {

// Whether the stack (py-spy's or gdb's) has the main thread; the kernel's own facts do not.
bool ShowsMainThread(absl::string_view stack);
// The innermost call of the main thread in which a rank waits for all others; "": none.
std::string WaitingCall(absl::string_view stack);

}  // namespace ddprun::coordinator
