#!/usr/bin/env bash
# Throughput of log forwarding: 4 workers write 4 GB in all to files on tmpfs (about a minute, 4 GB of memory).
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
run_benchmark logs "$@"
