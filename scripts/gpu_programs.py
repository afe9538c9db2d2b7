"""Unmodified PyTorch programs on the GPUs of this machine (two or more), with faults; prints a table, exits 1 when a row is bad.

Rows: a kill in training, a rank that stands still (hang report), a rank that dies while its peers wait in NCCL's init, the
flight recorder's dumps, GPU memory after a failure. Needs a Python with PyTorch (DDPRUN_PYTHON) and build/bin (DDPRUN_BIN).
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from job_run import ROOT, Job

PYTHON = os.environ.get("DDPRUN_PYTHON", "python3")
PROGRAM = str(ROOT / "examples/pytorch/ddp.py")
RANKS = 2

# Rank 1 never comes to the collective that rank 0 waits in.
WAITING = """
import os, sys, time, datetime, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank), timeout=datetime.timedelta(seconds=15))
x = torch.ones(1024, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0:
    print("second life", flush=True)
    sys.exit(0)
if rank == 1:
    time.sleep(600)
dist.all_reduce(x)
torch.cuda.synchronize()
"""

# Rank 1 dies while rank 0 is inside ncclCommInitRank (which waits for it).
DYING_IN_INIT = """
import os, signal, sys, time, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
again = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0
dist.init_process_group("gloo")
group = dist.new_group(backend="nccl")
dist.barrier()
if rank == 1 and not again:
    time.sleep(2)  # rank 0 is inside by now
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(8, device="cuda"), group=group)
torch.cuda.synchronize()
"""


def gpu_pids():
    """Processes that hold memory of a GPU."""
    done = subprocess.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"], capture_output=True,
                          text=True, check=False)
    return {int(word) for word in done.stdout.split() if word.isdigit()}


def program(folder, text):
    path = pathlib.Path(folder) / "program.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def log(job, generation, rank):
    path = job.run_dir / f"logs/g{generation}/rank{rank}.log"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def kill_in_training(folder):
    arguments = ["--nproc", str(RANKS), "--", PYTHON, "-u", PROGRAM, "--steps", "600", "--snapshot", f"{folder}/s.pt"]
    with Job(arguments, timeout_seconds=120) as job:
        job.wait_until(lambda: "step 60 " in log(job, 1, 0), "step 60")
        pids = job.worker_pids(1)
        killed = time.time()
        os.kill(pids[1], signal.SIGKILL)
        again = job.wait_until(lambda: all(rank in job.worker_pids(2) for rank in range(RANKS)), "generation 2")
        started = max(e["t"] for e in job.events if e["event"] == "worker_started" and e["generation"] == 2)
        left = gpu_pids() & set(pids.values())
        code, result = job.wait_end()
    failure = result["failures"][0]
    good = again and code == 0 and failure["rank"] == 1 and failure.get("signal") == "SIGKILL" and not left
    return good, (f"exit {code}, root cause rank {failure['rank']} {failure.get('signal')}, last exec "
                  f"{started - killed:.3f} s after the kill, old processes on GPUs then: {len(left)}")


def standing_still(folder):
    arguments = ["--nproc", str(RANKS), "--hang-timeout", "8", "--", PYTHON, "-u", PROGRAM, "--steps", "3000",
                 "--snapshot", f"{folder}/s.pt"]
    with Job(arguments, timeout_seconds=180) as job:
        job.wait_until(lambda: "step 60 " in log(job, 1, 0), "step 60")
        stopped = time.time()
        os.kill(job.worker_pids(1)[1], signal.SIGSTOP)
        found = job.wait_event("hang_found")
        code, result = job.wait_end()
    failure = result["failures"][0]
    good = code == 0 and found["rank"] == 1 and failure["cause"] == "hang"
    return good, f"exit {code}, hang of rank {found['rank']} found after {found['t'] - stopped:.1f} s: {failure['reason']}"


def flight_recorder(folder):
    environment = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000",
                   "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    os.environ.update(environment)
    try:
        with Job(["--nproc", str(RANKS), "--", PYTHON, "-u", program(folder, WAITING)], timeout_seconds=150) as job:
            code, result = job.wait_end()
    finally:
        for name in environment:
            del os.environ[name]
    failure = result["failures"][0]
    artifacts = failure.get("artifacts", [])
    return code == 0 and len(artifacts) > 0, f"exit {code}, dumps {[os.path.basename(a) for a in artifacts]}, {failure['reason']}"


def dying_in_init(folder):
    with Job(["--nproc", str(RANKS), "--", PYTHON, "-u", program(folder, DYING_IN_INIT)], timeout_seconds=120) as job:
        died = job.wait_event("worker_exited", rank=1, generation=1)
        again = job.wait_event("generation_started", generation=2)
        code, result = job.wait_end()
    failure = result["failures"][0]
    took = again["t"] - died["t"]
    good = code == 0 and failure["rank"] == 1 and failure.get("signal") == "SIGKILL" and took < 5
    return good, f"exit {code}, root cause rank {failure['rank']} {failure.get('signal')}, next generation {took:.3f} s after"


def main():
    bad = 0
    before = gpu_pids()
    for check in (kill_in_training, standing_still, flight_recorder, dying_in_init):
        with tempfile.TemporaryDirectory(prefix="ddprun-gpu-") as folder:
            try:
                good, text = check(folder)
            except Exception as error:  # pylint: disable=broad-except
                good, text = False, f"{type(error).__name__}: {error}"
        bad += not good
        print(f"| {check.__name__.replace('_', ' ')} | {'ok' if good else 'BAD'} | {text} |", flush=True)
    left = gpu_pids() - before
    bad += bool(left)
    print(f"| processes left on the GPUs | {'ok' if not left else 'BAD'} | {json.dumps(sorted(left))} |", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
