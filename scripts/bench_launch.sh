#!/usr/bin/env bash
# Start and end of 8 processes that do nothing: ddprun beside torchrun and mpirun (half a minute).
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_packages APT_BENCH
need_wheels whole
run_benchmark launch "$@"
