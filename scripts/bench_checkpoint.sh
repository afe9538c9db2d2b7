#!/usr/bin/env bash
# Time that the training loop spends inside checkpoint calls, one every 10 steps (1 to 2 minutes).
#   scripts/bench_checkpoint.sh [--epochs N]
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
run_benchmark checkpoint "$@"
