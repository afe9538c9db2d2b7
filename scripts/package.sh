#!/usr/bin/env bash
# Makes a folder that runs where it is copied to: out/ddprun-VERSION-ARCH/{bin,lib,include,examples}.
#   scripts/package.sh [--gpu] [--tar]     --gpu: with libddp_worker_cuda.so and what it needs (several GB); --tar: also a .tar.gz
# ddprun and ddprun-keeper need libc alone; ddp-worker finds everything but libc in ../lib, relative to itself.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

gpu=no
tar=no
for argument in "$@"; do
  case "$argument" in
    --gpu) gpu=yes ;;
    --tar) tar=yes ;;
    *) die "package.sh: unknown option $argument; usage: scripts/package.sh [--gpu] [--tar]" ;;
  esac
done
"$ROOT/scripts/build.sh"
need_packages APT_PACKAGE
cd "$ROOT"
name="ddprun-$(pin DDPRUN_VERSION)-$(uname -m)"
out="$ROOT/out/$name"
rm -rf "$out"
mkdir -p "$out"/{bin,lib,include,examples}

# needed FILE: the shared libraries that it loads, all but those of libc, as "name path" lines.
needed() {
  local listed
  listed="$(ldd "$1")"
  if grep -q 'not found' <<<"$listed"; then die "$1: $(grep 'not found' <<<"$listed")"; fi
  awk '$2 == "=>" {print $1, $3}' <<<"$listed" | grep -vE '^(lib(c|m|dl|rt|pthread|util)\.so|ld-linux)' || true
}

for program in ddprun ddprun-keeper ddprun-sim ddp-worker; do install -m 755 "$BUILD/bin/$program" "$out/bin/"; done
install -m 644 "$BUILD"/bin/{ddprun-preload.py,ddp-worker.versions} "$out/bin/"
install -m 644 "$BUILD"/lib/libddprun.* "$out/lib/"
install -m 644 worker/client/ddprun.h "$out/include/"
cp -r examples/. "$out/examples/"
cp LICENSE "$out/"

roots=("$BUILD/bin/ddp-worker")
if [[ "$gpu" == yes ]]; then
  plugin="$BUILD/lib/libddp_worker_cuda.so"
  [[ -f "$plugin" ]] || die "$plugin is not built (the whole wheel set is installed by scripts/build.sh --tests)"
  install -m 644 "$plugin" "$out/lib/"
  roots+=("$plugin")
fi
for file in "${roots[@]}"; do
  while read -r library path; do cp -Ln "$path" "$out/lib/$library"; done < <(needed "$file")
done
# cuDNN and others open parts of themselves by name.
if [[ "$gpu" == yes ]]; then find "$VENV"/lib/python3*/site-packages/nvidia -name 'lib*.so*' -exec cp -n {} "$out/lib/" \;; fi

# shellcheck disable=SC2016  # $ORIGIN is the loader's
patchelf --set-rpath '$ORIGIN/../lib' "$out/bin/ddp-worker"
for library in "$out"/lib/*.so*; do
  # shellcheck disable=SC2016
  patchelf --set-rpath '$ORIGIN' "$library"
done

more="$(needed "$out/bin/ddprun")"
[[ -z "$more" ]] || die "ddprun needs more than libc: $more"
for file in "$out"/bin/ddp-worker "$out"/lib/*.so*; do
  while read -r library path; do
    [[ "$(readlink -f "$path")" == "$out"/* ]] || die "$file would load $library from $path, outside the folder"
  done < <(needed "$file")
done
say "checked: nothing but libc is loaded from outside $out ($(du -sh "$out" | cut -f1))"
if [[ "$tar" == yes ]]; then
  tar -C "$ROOT/out" -czf "$out.tar.gz" "$name"
  say "wrote $out.tar.gz"
fi
