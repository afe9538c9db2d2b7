#!/usr/bin/env bash
# Installs what is missing and builds ddprun, ddprun-keeper, ddprun-sim and ddp-worker.
#   scripts/build.sh [--tests] [PRESET]     PRESET: release (in build/), debug, asan, tsan (in build-PRESET/)
# --tests also installs what tests need and builds them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release
tests=no
for argument in "$@"; do
  case "$argument" in
    --tests) tests=yes ;;
    -*) die "build.sh: unknown option $argument; usage: scripts/build.sh [--tests] [release|debug|asan|tsan]" ;;
    *) preset="$argument" ;;
  esac
done

wheels=small
if [[ "$tests" == yes ]] || has_nvidia_driver; then wheels=whole; fi
if [[ "$tests" == yes ]]; then
  need_packages APT_LAUNCHER APT_WORKER APT_TEST
else
  need_packages APT_LAUNCHER APT_WORKER
fi
need_wheels "$wheels"
if [[ "$tests" == yes ]]; then need_peer paddle "paddlepaddle==$(pin PADDLE_VERSION)"; fi

cd "$ROOT"
dir="$(build_dir "$preset")"
cache="$dir/CMakeCache.txt"
options=()
# A folder that was configured elsewhere (a copied checkout) cannot be used again.
if [[ -f "$cache" ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$cache"; then options+=(--fresh); fi
if [[ "$tests" == yes ]]; then
  options+=(-DDDPRUN_TESTS=ON "-DDDPRUN_PYTHON=$VENV/bin/python")
elif [[ ! -f "$cache" || "${options[*]}" == --fresh ]]; then
  options+=(-DDDPRUN_TESTS=OFF)
fi
say "configuring $dir"
mkdir -p "$dir"
if ! cmake --preset "$preset" "${options[@]}" >"$dir/configure.log" 2>&1; then
  cat "$dir/configure.log" >&2
  die "cmake --preset $preset ${options[*]} failed"
fi

targets=(all)
if [[ "$tests" == no ]]; then
  targets=(launcher/all worker/client/all)
  if grep -qx 'DDPRUN_WORKER:BOOL=ON' "$cache"; then targets+=(worker/all); fi
fi
jobs="$(compile_jobs)"
say "building ${targets[*]} in $dir with $jobs jobs"
ninja -C "$dir" -j "$jobs" --quiet "${targets[@]}"
say "built: $(cd "$dir/bin" && echo *) in $dir/bin"
