#!/usr/bin/env bash
# Trains ResNet-18 on images in CIFAR-10's format and a GPT on text, and draws their learning curves into docs/.
#   scripts/learning_curves.sh [FOLDER]      with a FOLDER that holds the runs run-resnet18_cifar and run-gpt: only draws them
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

folder="${1:-}"
if [[ -z "$folder" ]]; then
  "$ROOT/scripts/build.sh"
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
  python3 "$ROOT/scripts/learning_curves.py" "$folder"
fi
need_peer matplotlib "matplotlib==$(pin MATPLOTLIB_VERSION)"
draw() { "$ROOT/.deps/matplotlib/bin/python" "$ROOT/scripts/plot_metrics.py" "$folder/run-$1" -o "$ROOT/docs/learning_$1.svg" --title "$2"; }
draw resnet18_cifar "ResNet-18, Fashion-MNIST in CIFAR-10's format"
draw gpt "GPT on the source code of Python's library, byte tokens"
