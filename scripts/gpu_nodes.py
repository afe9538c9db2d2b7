"""Jobs over two nodes with a GPU each, on a machine with two GPUs; prints a table, exits 1 when a row is bad.

The nodes are two ddprun with the same command and a GPU each (--gpus), which meet over loopback; gradients go through NCCL.
Rows: the built-in trainer on one node and on two, with a kill of a worker, with the loss and return of a node, a job that grows;
an unmodified PyTorch program; what is left on the GPUs. Needs a Python with PyTorch (DDPRUN_PYTHON), build/bin (DDPRUN_BIN) and
the data of examples/fashion_mnist.cfg (DDPRUN_DATA: its folder).
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from gpu_programs import gpu_pids
from job_run import DDPRUN, REFERENCE_CONFIG, ROOT, Job

PYTHON = os.environ.get("DDPRUN_PYTHON", "python3")
PYTORCH = str(ROOT / "examples/pytorch/ddp.py")
DATA = os.environ.get("DDPRUN_DATA", "/usr/share/datasets/fashion-mnist")
TRAINER = ["--device", "cuda", "--set", f"data.dir={DATA}", "--set", "train.epochs=10", "--set", "checkpoint.every_steps=200"]
SECONDS_MAX = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def node_options(port, name, gpu, nodes):
    return ["--nnodes", nodes, "--coordinator", f"127.0.0.1:{port}", "--advertise-addr", "127.0.0.1", "--node", name,
            "--node-rank", str(gpu), "--nproc", "1", "--gpus", str(gpu)]


class Member:
    """The same command on the second node."""

    def __init__(self, port, job_arguments, nodes="2"):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([DDPRUN, *node_options(port, "b", 1, nodes), *job_arguments], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def end(self):
        code = self.process.wait(SECONDS_MAX)
        self.log.seek(0)
        return code, self.log.read()


def host(port, job_arguments, nodes="2"):
    """The first node, which hosts the job: it is there before the second one is started."""
    job = Job([*node_options(port, "a", 0, nodes), *job_arguments], timeout_seconds=SECONDS_MAX)
    job.wait_event("job_started")
    return job


def step_reached(job, generation, step):
    return job.wait_until(lambda: any(e["event"] == "training_progressed" and e["generation"] == generation and
                                      e["step"] >= step for e in job.events), f"step {step} of generation {generation}")


def first_step(job, generation):
    return next(e["t"] for e in job.events if e["event"] == "training_progressed" and e["generation"] == generation)


def one_node(_):
    with Job(["--nproc", "2", *TRAINER, REFERENCE_CONFIG], timeout_seconds=SECONDS_MAX) as job:
        code, result = job.wait_end()
    return code == 0, f"exit {code}, step {result['final_step']}, digest {result['weights_digest']}", result["weights_digest"]


def two_nodes(_, digest):
    port = free_port()
    arguments = [*TRAINER, REFERENCE_CONFIG]
    with host(port, arguments) as job, Member(port, arguments) as member:
        code, result = job.wait_end()
        other, _ = member.end()
    same = result["weights_digest"] == digest
    return code == 0 and other == 0 and same, f"exits {code} and {other}, digest as on one node: {same}"


def worker_killed(_, digest):
    port = free_port()
    arguments = [*TRAINER, REFERENCE_CONFIG]
    with host(port, arguments) as job, Member(port, arguments) as member:
        step_reached(job, 1, 60)
        pids = job.worker_pids(1)
        killed = time.time()
        os.kill(pids[1], signal.SIGKILL)
        job.wait_event("worker_started", generation=2)
        left = gpu_pids() & set(pids.values())
        code, result = job.wait_end()
        other, _ = member.end()
        took = first_step(job, 2) - killed
    same = result["weights_digest"] == digest
    good = code == 0 and other == 0 and same and not left
    return good, f"exits {code} and {other}, kill to next step {took:.2f} s, old processes on GPUs then: {len(left)}, digest equal: {same}"


def node_lost_and_back(_, digest):
    port = free_port()
    arguments = [*TRAINER, REFERENCE_CONFIG]
    with host(port, arguments) as job, Member(port, arguments) as member:
        step_reached(job, 1, 60)
        killed = time.time()
        member.process.kill()
        lost = job.wait_event("node_lost")
        with Member(port, arguments) as again:
            code, result = job.wait_end()
            other, _ = again.end()
        took = first_step(job, 2) - killed
    same = result["weights_digest"] == digest
    good = code == 0 and other == 0 and same
    return good, f"exits {code} and {other}, lost after {lost['t'] - killed:.2f} s, next step after {took:.2f} s, digest equal: {same}"


def growth(_):
    port = free_port()
    arguments = [*TRAINER, REFERENCE_CONFIG]
    with host(port, arguments, "1:2") as job:
        step_reached(job, 1, 60)
        with Member(port, arguments, "1:2") as member:
            started = job.wait_event("generation_started", generation=2)
            code, result = job.wait_end()
            other, _ = member.end()
        last = max(e["step"] for e in job.events if e["event"] == "checkpoint_committed" and e["generation"] == 1)
    good = code == 0 and other == 0 and started["world_size"] == 2 and started["resume_step"] == last and result["restarts"] == 0
    return good, f"exits {code} and {other}, grown to {started['world_size']} at step {started['resume_step']}, restarts charged {result['restarts']}"


def pytorch(folder):
    port = free_port()
    arguments = ["--", PYTHON, "-u", PYTORCH, "--steps", "600", "--snapshot", f"{folder}/s.pt"]
    with host(port, arguments) as job, Member(port, arguments) as member:
        job.wait_until(lambda: "step 60 " in (job.run_dir / "logs/g1/rank0.log").read_text(errors="replace")
                       if (job.run_dir / "logs/g1/rank0.log").exists() else False, "step 60")
        killed = time.time()
        os.kill(job.worker_pids(1)[1], signal.SIGKILL)
        started = job.wait_event("worker_started", generation=2)
        code, result = job.wait_end()
        other, _ = member.end()
    failure = result["failures"][0]
    good = code == 0 and other == 0 and failure["rank"] == 1 and failure["node"] == "b"
    return good, f"exits {code} and {other}, root cause rank {failure['rank']} on node {failure['node']}, next start {started['t'] - killed:.2f} s after the kill"


def main():
    os.environ.setdefault("DDPRUN_SECRET", os.urandom(16).hex())
    bad = 0
    before = gpu_pids()
    digest = None
    for check in (one_node, two_nodes, worker_killed, node_lost_and_back, growth, pytorch):
        with tempfile.TemporaryDirectory(prefix="ddprun-gpu-") as folder:
            try:
                takes = [digest] if check in (two_nodes, worker_killed, node_lost_and_back) else []
                good, text, *more = check(folder, *takes)
                digest = more[0] if more else digest
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
