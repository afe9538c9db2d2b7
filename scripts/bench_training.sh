#!/usr/bin/env bash
# Training on CPUs beside Python DDP, in turns: the reference job, ResNet-18 on CIFAR-sized pictures, memory of a rank (about 10 minutes).
#   scripts/bench_training.sh [--rounds N] [--only reference|resnet18]
# Prints lines for the table of docs/benchmarks.md; exit code 1 when ddprun is not as far ahead as it should be.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_wheels whole
"$ROOT/scripts/build.sh" >&2
exec "$VENV/bin/python" "$ROOT/scripts/bench_training.py" "$@"
