#!/usr/bin/env bash
# ddprun and PyTorch train the same settings; how far apart they are is compared with a tolerance (about an hour on 2 cores; --quick: a minute).
#   scripts/parity.sh [--quick] [--only TEXT] [--jobs N] [--write [FILE]]
# --jobs runs N cases at the same time. --write puts the table into docs/parity.md, or a page like it into FILE. Exit code 1 when a difference is above its tolerance.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_wheels whole
need_torchvision
"$ROOT/scripts/build.sh" >&2
exec "$ROOT/.deps/torchvision/bin/python" "$ROOT/scripts/parity.py" "$@"
