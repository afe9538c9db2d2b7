#!/usr/bin/env bash
# kill -9 of a worker to the next completed step, 20 times, beside torchrun (2 to 4 minutes).
#   scripts/bench_recovery.sh [--kills N] [--seed N] [--no-peer]
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_wheels whole
run_benchmark recovery "$@"
