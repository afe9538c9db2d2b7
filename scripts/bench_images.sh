#!/usr/bin/env bash
# Pictures a second, from JPEG to normalised 224×224, beside torchvision with Pillow; training that waits for them (3 minutes).
#   scripts/bench_images.sh [--rounds N] [--workers N] [--pictures N]
# Prints lines for the table of docs/benchmarks.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_wheels whole
need_torchvision
run_benchmark images "$@"
