#!/usr/bin/env bash
# An unmodified PyTorch DDP program loses a rank: kill to next step under ddprun, NVRx's ft_launcher and torchrun (about 10 minutes).
#   scripts/bench_programs.sh [--runs N] [--ft-runs N] [--torchrun-runs N] [--cuda]
# Prints a line for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_wheels whole
need_peer nvrx "nvidia-resiliency-ext==$(pin NVRX_VERSION)"
run_benchmark programs "$@"
