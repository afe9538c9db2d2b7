#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds, and trains the reference job
# (a small convolutional network on Fashion-MNIST) in 4 processes.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$ROOT/scripts/build.sh"
cd "$ROOT"
# Named here: by its end runs/latest may be another one that was started beside it.
run="runs/quickstart-$(date +%Y%m%d-%H%M%S)"
say "training: build/bin/ddprun --nproc 4 --run-dir $run examples/fashion_mnist.cfg"
build/bin/ddprun --nproc 4 --run-dir "$run" examples/fashion_mnist.cfg
cat <<END

What to try next, in $ROOT
  build/bin/ddprun --nproc 4 examples/fashion_mnist.cfg
      and, while it trains, from another terminal:  kill -9 \$(grep -o '"pid":[0-9]*' runs/latest/events.jsonl | tail -n 1 | cut -d: -f2)
      It goes on from the newest checkpoint and ends with the same weights: compare "weights_digest" in
      runs/latest/result.json with the one of this run, $run/result.json.
  build/bin/ddprun --resume
      goes on with the newest run, should you have stopped it (Ctrl-C, or even kill -9 of ddprun).
  build/bin/ddprun --nproc 2 -- python3 your_script.py
      runs a program of your own, with torchrun's environment.
  $run/logs/g1/rank0.log, events.jsonl, metrics.jsonl, checkpoints/
      what each worker printed, what happened, and what was learnt.
  build/bin/ddprun --help
END
