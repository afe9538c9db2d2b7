"""An unmodified PyTorch DDP program (scripts/peer_recover.py: snapshot each step; Gloo, 4 processes, or with --cuda NCCL, one
process for each of 2 GPUs) loses its last rank to SIGKILL. Seconds from the kill to the next completed step, under ddprun, NVRx's ft_launcher and torchrun, in turns.

ddprun's own share is the time from the kill to the exec of the last worker of the next generation.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from bench_report import Sample, pins, print_row
from job_run import DDPRUN, ROOT

RUN_SECONDS_MAX = 120
END_SECONDS_MAX = 40
PYTHON = os.environ.get("DDPRUN_PYTHON", str(ROOT / ".deps/venv/bin/python"))
FT_LAUNCHER = os.environ.get("DDPRUN_FT_LAUNCHER", str(ROOT / ".deps/nvrx/bin/ft_launcher"))
PROGRAM = str(ROOT / "scripts/peer_recover.py")


def run(command, cwd):
    """Output of a command in a session of its own, and whether it ended in time; it is stopped when not."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{os.path.dirname(PYTHON)}:{os.environ['PATH']}"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", cwd=cwd, start_new_session=True, env=environment)
    try:
        return process.communicate(timeout=RUN_SECONDS_MAX)[0], process.returncode
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            return process.communicate(timeout=END_SECONDS_MAX)[0], None
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0], None


def measure(command, folder):
    """(seconds from kill to the next step or None, killed at, exit code or None)."""
    output, code = run(command, folder)
    match = re.search(r"recovered after ([0-9.]+) s", output)
    killed = pathlib.Path(folder) / "killed_at"
    killed_at = float(killed.read_text(encoding="utf-8")) if killed.exists() else None
    if match is None or code != 0:
        print(f"  not recovered, exit code {code}; last lines:\n{output[-1500:]}", flush=True)
        return None, killed_at, code
    return float(match.group(1)), killed_at, code


def ours(options, folder):
    run_dir = pathlib.Path(folder) / "run"
    command = [DDPRUN, "--nproc", str(options.nproc), "--run-dir", str(run_dir), "--", PYTHON, "-u", PROGRAM, folder,
               *options.arguments]
    seconds, killed_at, _ = measure(command, folder)
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    starts = [e["t"] for e in events if e["event"] == "worker_started" and e["generation"] == 2]
    share = max(starts) - killed_at if killed_at and len(starts) == options.nproc else None
    return seconds, share


def peer(options, launcher, folder):
    rdzv = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--nnodes", "1"]
    command = [*launcher, *rdzv, "--nproc-per-node", str(options.nproc), "--max-restarts", "3", PROGRAM, folder,
               *options.arguments]
    return measure(command, folder)[0]


def turns(options):
    mine, shares, nvrx, torchrun, lost = [], [], [], [], 0
    for turn in range(options.runs):
        with tempfile.TemporaryDirectory(prefix="ddprun-bench-") as folder:
            seconds, share = ours(options, folder)
        lost += seconds is None
        mine += [seconds] if seconds is not None else []
        shares += [share] if share is not None else []
        print(f"  {turn + 1}: ddprun {seconds} s, own share {share}", flush=True)
        for name, values, count, launcher in (
                ("ft_launcher", nvrx, options.ft_runs, [FT_LAUNCHER]),
                ("torchrun", torchrun, options.torchrun_runs, [PYTHON, "-m", "torch.distributed.run"])):
            if turn >= count:
                continue
            with tempfile.TemporaryDirectory(prefix="ddprun-bench-") as folder:
                values.append(peer(options, launcher, folder))
            print(f"  {turn + 1}: {name} {values[-1]} s", flush=True)
    return mine, shares, nvrx, torchrun, lost


def peer_text(name, values):
    back = [value for value in values if value is not None]
    times = f", {Sample(back).text()}" if back else ""
    return f"{name}: {len(back)} of {len(values)} came back{times}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--ft-runs", type=int, default=5)
    parser.add_argument("--torchrun-runs", type=int, default=3)
    parser.add_argument("--cuda", action="store_true")
    options = parser.parse_args()
    options.nproc, options.arguments = (2, ["cuda"]) if options.cuda else (4, [])
    mine, shares, nvrx, torchrun, lost = turns(options)
    if not mine:
        print("ddprun never came back", flush=True)
        return 1
    back = [value for value in nvrx if value is not None]
    ratio = f"{Sample(mine).median / Sample(back).median:.2f}" if back and mine else "–"
    versions = f"torch {pins()['TORCH_VERSION']}, nvidia-resiliency-ext {pins()['NVRX_VERSION']}"
    text = f"{len(mine)} of {options.runs} came back, {Sample(mine).text()}; own share {Sample(shares).text()}"
    command = "scripts/bench_programs.sh --cuda" if options.cuda else "scripts/bench_programs.sh"
    print_row(command, f"{peer_text('ft_launcher', nvrx)}; {peer_text('torchrun', torchrun)}",
              text, ratio, versions)
    return 1 if lost else 0


sys.exit(main())
