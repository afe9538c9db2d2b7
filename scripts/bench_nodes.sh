#!/usr/bin/env bash
# Several nodes in network namespaces: how fast a failure, a lost node and the last of 64 agents are noticed, beside torchrun
# (10 minutes; needs root).
#   scripts/bench_nodes.sh [--only propagation,loss,rendezvous] [--kills N] [--cuts N] [--agents N] [--no-peer]
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_wheels whole
run_benchmark nodes "$@"
