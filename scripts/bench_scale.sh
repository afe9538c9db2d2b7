#!/usr/bin/env bash
# What the start of a generation of up to 16,384 ranks costs a coordinator: CPU time, messages and memory (2 minutes).
# Prints lines for the table of docs/benchmarks.md; --plot writes docs/scale.svg anew.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
run_benchmark scale "$@"
