#!/usr/bin/env bash
# clang-tidy over the sources named, or over all that need no LibTorch (files that include it take half a minute each).
#   scripts/tidy.sh [FILE.cc…]          needs a built build/ (compile_commands.json, generated headers)
# A file that was clean is not read again until it, a header of ours or .clang-tidy changes.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
[[ -f "$BUILD/compile_commands.json" ]] || die "no $BUILD/compile_commands.json; run scripts/build.sh first"
if [[ $# -gt 0 ]]; then files=("$@"); else
  mapfile -t files < <(git ls-files 'common/*.c' 'common/*.cc' 'launcher/*.cc' 'launcher/*.c' 'worker/client/*.c')
fi
stamps="$BUILD/tidy"
mkdir -p "$stamps"
headers="$(git ls-files '*.h' .clang-tidy '*.proto' | xargs cat | sha256sum | cut -d' ' -f1)"

todo=()
for file in "${files[@]}"; do
  grep -qF "\"file\": \"$ROOT/$file\"" "$BUILD/compile_commands.json" || continue
  stamp="$stamps/${file//\//_}"
  key="$headers $(sha256sum <"$file")"
  if [[ -f "$stamp" && "$(cat "$stamp")" == "$key" ]]; then continue; fi
  todo+=("$file" "$stamp" "$key")
done
((${#todo[@]} > 0)) || exit 0
say "clang-tidy: $((${#todo[@]} / 3)) files"

check_one() {
  clang-tidy --quiet -p "$BUILD" "$1" 2>/dev/null && printf '%s\n' "$3" >"$2"
}
export -f check_one
export BUILD
# shellcheck disable=SC2016  # $@ belongs to the inner shell
printf '%s\0' "${todo[@]}" | xargs -0 -n 3 -P "$(nproc)" bash -c 'check_one "$@"' _
