"""Training on CPUs beside Python DDP over Gloo, the same job in turns: the reference job in 4 processes, ResNet-18 on CIFAR-sized
pictures in 2, each with one thread; and the memory of a rank.

Ours is timed by metrics.jsonl (samples over samples_per_s of each interval after the warm-up); Python by scripts/peer_training.py.
Memory is the largest sum over the ranks that was seen, divided by the ranks: PSS, in which a page that n processes share counts 1/n
in each; and the highest resident set of a rank.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from bench_report import Sample, pins, print_row
from job_run import ROOT, Job, descendants

sys.path.insert(0, str(ROOT / "tests/python"))
import parity_data  # noqa: E402

PYTHON = os.environ.get("DDPRUN_PYTHON", str(ROOT / ".deps/venv/bin/python"))
RUN_SECONDS_MAX = 400
MEMORY_LOOK_SECONDS = 0.25
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
# name: model, kind, ranks, batch, warm-up steps, steps, keys of ours, needed ratio
JOBS = {
    "reference": ("simple_cnn", "idx", 4, 64, 100, 400, {"train.optimizer": "adam", "train.lr": "0.001"}, 1.3),
    "resnet18": ("resnet18", "cifar10", 2, 32, 4, 12,
                 {"train.optimizer": "sgd", "train.lr": "0.1", "train.momentum": "0.9", "train.weight_decay": "0.0005",
                  "model.stem": "cifar", "data.augment": "none"}, 1.1),
}


class Memory:
    """The memory of the processes that are ranks, looked at again and again."""

    def __init__(self):
        self.pss, self.resident = 0, 0

    def look(self, parent, name):
        total, count = 0, 0
        for pid in descendants(parent):
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                if name not in command or b"torch.distributed" in command:
                    continue
                text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
                status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                total += int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1])
                self.resident = max(self.resident, int(re.search(r"VmHWM:\s+(\d+)", status)[1]))
            except (OSError, TypeError):  # it ended meanwhile
                continue
            count += 1
        self.pss = max(self.pss, total / count if count else 0)

    def text(self):
        return f"PSS {self.pss / 1024:.0f} MiB, resident {self.resident / 1024:.0f} MiB"


def follow(process, memory, name):
    """Waits for the end of a process; looks at its ranks' memory meanwhile when that is asked for."""
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        if memory is not None:
            memory.look(process.pid, name)
        try:
            process.wait(MEMORY_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            pass


def ours(job, folder, memory=None):
    """Seconds per step of ddprun."""
    model, kind, ranks, batch, warmup, steps, keys, _ = job
    config = pathlib.Path(folder) / "train.cfg"
    data = FASHION_MNIST if kind == "idx" else f"{folder}/data"
    config.write_text(f'[model]\nname = "{model}"\n[data]\nkind = "{kind}"\ndir = "{data}"\nbatch_size = {batch}\nworkers = 1\n'
                      f'[train]\nsteps = {warmup + steps}\nevaluate = false\n[checkpoint]\nevery_steps = 0\n'
                      f'[log]\nevery_steps = {min(warmup, steps)}\n', encoding="utf-8")
    arguments = ["--nproc", str(ranks), "--device", "cpu", *(part for item in keys.items() for part in ("--set", "=".join(item)))]
    with Job([*arguments, str(config)], timeout_seconds=RUN_SECONDS_MAX) as run:
        follow(run.process, memory, b"ddp-worker")
        code, result = run.wait_end()
        if code != 0:
            sys.exit(f"ddprun ended with {code}: {result}")
        lines = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds, before = 0.0, 0
    for line in lines:
        if line["step"] > warmup:
            seconds += (line["step"] - before) * batch * ranks / line["samples_per_s"]
        before = line["step"]
    return seconds / steps


def peer(job, folder, fused, memory=None):
    """Seconds per step of Python DDP."""
    model, kind, ranks, batch, warmup, steps, _, _ = job
    data = FASHION_MNIST if kind == "idx" else f"{folder}/data"
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
               str(ROOT / "scripts/peer_training.py"), model, kind, data, str(batch), str(warmup), str(steps),
               *(["fused"] if fused else [])]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    follow(process, memory, b"peer_training.py")
    if process.poll() is None:
        process.kill()
    output, _ = process.communicate()
    match = re.search(r"seconds per step: ([0-9.]+)", output)
    if match is None:
        sys.exit(f"the peer ended with {process.returncode}:\n{output[-2000:]}")
    return float(match[1])


def measure(name, rounds, folder):
    """Prints the lines of one job; returns whether the ratio is reached."""
    job = JOBS[name]
    mine, default, fused = [], [], []
    for turn in range(rounds):
        mine.append(ours(job, folder))
        default.append(peer(job, folder, False))
        fused.append(peer(job, folder, True))
        print(f"  {name} {turn + 1}: ddprun {mine[-1]:.4f}, DDP {default[-1]:.4f}, DDP fused {fused[-1]:.4f} s", flush=True)
    memories = [Memory(), Memory()]
    ours(job, folder, memories[0])
    peer(job, folder, False, memories[1])
    model, _, ranks, batch, warmup, steps, _, needed = job
    ratio, strong = (Sample(values).median / Sample(mine).median for values in (default, fused))
    versions = f"torch {pins()['TORCH_VERSION']}"
    print_row(f"scripts/bench_training.sh: {model}, {ranks} processes of one thread, batch {batch}, {steps} steps after {warmup}",
              f"DDP: {Sample(default).text('s/step', 4)}; fused optimizer, gradients as bucket views: {Sample(fused).text('s/step', 4)}",
              Sample(mine).text("s/step", 4), f"{ratio:.2f} ({strong:.2f} to the fused one)", versions)
    print_row(f"scripts/bench_training.sh: memory of a rank, {model}, {ranks} processes", f"DDP: {memories[1].text()}",
              memories[0].text(), f"{memories[0].pss / memories[1].pss:.2f} (PSS)", versions)
    return ratio >= needed and memories[0].pss < memories[1].pss and memories[0].resident < memories[1].resident


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(JOBS))
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="ddprun-bench-")
    try:
        parity_data.write_cifar10(f"{folder}/data", 2560, 100)
        reached = [measure(name, options.rounds, folder) for name in JOBS if options.only in (None, name)]
    finally:
        shutil.rmtree(folder)
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
