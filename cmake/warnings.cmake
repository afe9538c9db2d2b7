# Warnings are errors for our own code; headers of others come in as SYSTEM.
# g++ 12 sees uninitialised members in every moved std::variant at -O2 and above (a known false positive), hence the last flag.
add_library(ddprun_warnings INTERFACE)
target_compile_options(ddprun_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers -Werror
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
