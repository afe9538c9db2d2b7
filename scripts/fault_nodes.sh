#!/usr/bin/env bash
# Jobs over four nodes (network namespaces) under random faults; needs root.
#   scripts/fault_nodes.sh --seeds 1..500 --parallel 3    about half an hour on 2 cores
#   scripts/fault_nodes.sh --seed 17                      one again, with its folder kept
# Builds first; scripts/fault_nodes.py describes the options.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
"$ROOT/scripts/build.sh" --tests >&2
exec python3 "$ROOT/scripts/fault_nodes.py" "$@"
