#!/usr/bin/env bash
# Installs what is missing, builds, and runs every check and every test.
#   scripts/test.sh [ctest options]     for example: scripts/test.sh -L unit
# With options only the chosen tests run; without, the checks of scripts/lint.sh run first.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$ROOT/scripts/build.sh" --tests
cd "$ROOT"
lint=0
if [[ $# == 0 ]]; then "$ROOT/scripts/lint.sh" || lint=$?; fi
say "tests"
tests=0
ctest --test-dir "$BUILD" --output-on-failure --no-tests=error "$@" || tests=$?
if [[ "$lint" != 0 ]]; then die "scripts/lint.sh found something; see its lines above the tests"; fi
exit "$tests"
