#!/usr/bin/env bash
# Wake-ups a second of an idle launcher (15 seconds).
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
run_benchmark idle "$@"
