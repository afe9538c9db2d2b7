"""Pictures a second that the loader prepares for training (JPEG 500×375: decode, random part to 224×224, mirror, normalise),
beside torchvision with Pillow under PyTorch's DataLoader: the same files, batches and number of workers, in turns.

The pictures are made for it: waves of colour, discs and noise, JPEG quality 85 to 90, 4:2:0; they lie in the page cache.
"Per core" counts processor time, that of the process which takes the batches included, so it holds on a busy machine too.
Last, ResNet-18 is trained on them: the part of its time that it has waited for data.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile

from bench_report import Sample, pins, print_row
from job_run import BIN, ROOT, Job

PYTHON = str(ROOT / ".deps/torchvision/bin/python")
PEER = str(ROOT / "scripts/peer_images.py")
OURS = str(BIN.parent / "tests" / "image-rate")
TURN_SECONDS_MAX = 300
TRAINING = ["--set", "model.name=resnet18", "--set", "data.batch_size=16", "--set", "train.epochs=2", "--set", "train.evaluate=false",
            "--set", "precision.amp=off", "--set", "log.every_steps=1"]


def measure(command):
    """(pictures a second of processor time, pictures a second)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment,
                            timeout=TURN_SECONDS_MAX).stdout
    pictures, wall, processor = map(float, output.split())
    return pictures / processor, pictures / wall


def bench_waiting(folder, workers, ranks):
    """Of data_wait_s, compute_s and comm_wait_s of all steps but the first, for which there is nothing to prepare data behind."""
    arguments = ["--nproc", str(ranks), *TRAINING, "--set", f"data.workers={workers}", "--set", f"data.dir={folder}",
                 str(ROOT / "examples" / "image_folder.cfg")]
    with Job(arguments, TURN_SECONDS_MAX) as job:
        code, result = job.wait_end()
        if code != 0:
            sys.exit(f"the job ended with {code}: {result}")
        with open(job.run_dir / "metrics.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file][1:]
    waiting, computing, reducing = (sum(line[key] for line in lines) for key in ("data_wait_s", "compute_s", "comm_wait_s"))
    shown = shlex.join(arguments).replace(folder, "…")
    print_row(f"build/bin/ddprun {shown}", "–",
              f"{100 * waiting / (waiting + computing + reducing):.3f} % waiting for data ({waiting:.4f} s of "
              f"{waiting + computing + reducing:.1f} s, {len(lines)} steps of 224×224)", "–")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pictures", type=int, default=384)
    options = parser.parse_args()
    ours, peers, ratios, walls = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="ddprun-bench-") as folder:
        subprocess.run([PYTHON, PEER, "make", folder, str(options.pictures)], check=True)
        arguments = [folder, str(options.workers), "64"]
        for turn in range(options.rounds):
            mine = measure([OURS, *arguments, "6"])
            other = measure([PYTHON, PEER, "load", *arguments, "2"])
            ours.append(mine[0])
            peers.append(other[0])
            ratios.append(mine[0] / other[0])
            walls.append(mine[1] / other[1])
            print(f"  {turn + 1}: per core {mine[0]:.0f} and {other[0]:.0f}, ratio {ratios[-1]:.2f}; "
                  f"in all {mine[1]:.0f} and {other[1]:.0f}, ratio {walls[-1]:.2f}", flush=True)
        for ranks in (1, 2):
            bench_waiting(folder, options.workers, ranks)
    versions = f"torch {pins()['TORCH_VERSION']}, torchvision {pins()['TORCHVISION_VERSION']}, Pillow {pins()['PILLOW_VERSION']}"
    print_row(f"scripts/bench_images.sh --workers {options.workers}",
              f"torchvision, DataLoader: {Sample(peers).text('pictures a core second', 0)}",
              f"{Sample(ours).text('pictures a core second', 0)}",
              f"{Sample(ratios).median:.2f} per core, {Sample(walls).median:.2f} by the clock", versions)


main()
