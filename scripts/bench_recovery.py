"""kill -9 of a random worker → first completed step of the next generation, reference job in 4 processes.

Our time runs from the kill to field t of the next generation's training_progressed event. The peer is torchrun with
scripts/peer_recover.py (PyTorch DDP over Gloo, checkpoint every step), bounded: it may never come back.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from bench_report import Sample, pins, print_row
from job_run import REFERENCE_CONFIG, ROOT, Job

PROCESSES = 4
SECONDS_PER_KILL_MAX = 30
PEER_SECONDS_MAX = 60


def kill_once(job, chooser):
    """Kills one worker in the midst of training; returns (seconds to the next step, the scheduled delay in them)."""
    generation = job.generation()
    job.wait_event("training_progressed", generation=generation)
    job.wait_event("checkpoint_committed", generation=generation)
    job.wait_moment(chooser.uniform(0.0, 0.5))
    pids = job.worker_pids(generation)
    rank = chooser.choice(sorted(pids))
    killed = time.time()
    os.kill(pids[rank], signal.SIGKILL)
    back = job.wait_until(lambda: next((e for e in job.events if e["event"] == "training_progressed"
                                        and e["generation"] > generation), None), "a step of the next generation")
    scheduled = job.find("restart_scheduled", generation=generation) or {}
    delay = scheduled.get("delay_seconds", 0.0)
    print(f"  generation {generation}: rank {rank} killed, next step after {back['t'] - killed:.3f} s "
          f"(of it {delay:.3f} s ordered delay)", flush=True)
    return back["t"] - killed


def ours(kills, seed):
    arguments = ["--nproc", str(PROCESSES), "--max-restarts", "100", "--set", "train.epochs=1000",
                 "--set", "train.evaluate=false", "--set", "checkpoint.every_steps=20", REFERENCE_CONFIG]
    chooser = random.Random(seed)
    with Job(arguments, timeout_seconds=60 + kills * SECONDS_PER_KILL_MAX) as job:
        job.wait_event("generation_started")
        values = [kill_once(job, chooser) for _ in range(kills)]
        job.process.send_signal(signal.SIGTERM)
        job.wait_end()
    return arguments, Sample(values)


def peer():
    """What torchrun does with the same fault: a text and the seconds, or None when it did not come back."""
    with tempfile.TemporaryDirectory(prefix="ddprun-peer-") as folder:
        command = [str(ROOT / ".deps/venv/bin/python"), "-m", "torch.distributed.run", "--standalone",
                   "--nproc_per_node", str(PROCESSES), "--max-restarts", "3", str(ROOT / "scripts/peer_recover.py"),
                   folder]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            output, _ = process.communicate(timeout=PEER_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its workers itself, which are in sessions of their own
            try:
                output, _ = process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            return f"hung: not back after {PEER_SECONDS_MAX} s", None
        match = re.search(r"recovered after ([0-9.]+) s", output)
        if match:
            return f"{float(match.group(1)):.2f} s", float(match.group(1))
        return f"never came back: restarts used up, exit code {process.returncode}", None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    arguments, mine = ours(options.kills, options.seed)
    text, seconds = ("not run", None) if options.no_peer else peer()
    ratio = f"1/{seconds / mine.median:.1f}" if seconds is not None else "–"
    print_row(["build/bin/ddprun", *arguments], f"torchrun --max-restarts 3, 4 processes: {text}", mine.text(), ratio,
              f"torch {pins()['TORCH_VERSION']}")
    return 0


sys.exit(main())
