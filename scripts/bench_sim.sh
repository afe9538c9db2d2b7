#!/usr/bin/env bash
# Wall time of the simulator over 10,000 seeds (about a minute).
#   scripts/bench_sim.sh [--seeds A..B]
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
run_benchmark sim "$@"
