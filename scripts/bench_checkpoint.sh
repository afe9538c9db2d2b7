#!/usr/bin/env bash
# Time that the training loop spends inside checkpoint calls, one every 10 steps (1 to 2 minutes); with --large, copy and
# write of a large checkpoint beside plain ones (some minutes, 16 GB of memory with adamw, 6 with sgd).
#   scripts/bench_checkpoint.sh [--epochs N | --large [--rounds N] [--optimizer adamw|sgd]]
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
run_benchmark checkpoint "$@"
