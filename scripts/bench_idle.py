"""What supervision costs while workers do nothing: wake-ups a second (voluntary context switches) and processor time, in
percent of one core, of all threads over 20 s: of ddprun and its keeper, and of a coordinator and two agents over TCP.
`--bin DIR` measures the nodes of another build."""

import argparse
import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile
import time

from bench_report import print_row
from job_run import BIN, Job, JobError, descendants

SETTLE_SECONDS = 2
MEASURE_SECONDS = 20
WORKERS = 4


def look(pid):
    """(voluntary context switches, nanoseconds on a processor), summed over the threads of a process."""
    switches = nanoseconds = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="utf-8") as file:
            switches += next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="utf-8") as file:
            nanoseconds += int(file.read().split()[0])
    return switches, nanoseconds


def show(command, watched, before, after):
    rates = {name: (after[name][0] - before[name][0]) / MEASURE_SECONDS for name in watched}
    percent = sum(after[name][1] - before[name][1] for name in watched) / 1e9 / MEASURE_SECONDS * 100
    print_row(command, "–", ", ".join(f"{name} {rate:.1f} wake-ups/s" for name, rate in rates.items()) +
              f"; {percent:.3f} % of one core", "–")


def one_node():
    arguments = ["--nproc", str(WORKERS), "--", "sleep", "60"]
    with Job(arguments, timeout_seconds=90) as job:
        for rank in range(WORKERS):
            job.wait_event("worker_started", rank=rank)
        job.wait_moment(SETTLE_SECONDS)
        keepers = [pid for pid, (_, name) in descendants(job.process.pid).items() if name == "ddprun-keeper"]
        if len(keepers) != 1:
            raise JobError(f"expected one ddprun-keeper, found {len(keepers)}")
        watched = {"ddprun": job.process.pid, "ddprun-keeper": keepers[0]}
        before = {name: look(pid) for name, pid in watched.items()}
        job.wait_moment(MEASURE_SECONDS)
        after = {name: look(pid) for name, pid in watched.items()}
        job.process.send_signal(signal.SIGTERM)
        job.wait_end()
    show(["build/bin/ddprun", *arguments], watched, before, after)


def two_nodes(ddprun):
    """Over TCP, with the heartbeats that a lease of 3 s needs."""
    environment = dict(os.environ, DDPRUN_SECRET=secrets.token_hex(16))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddprun-idle-")))

        def start(*arguments, **options):
            process = stack.enter_context(subprocess.Popen([ddprun, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                                           stderr=subprocess.DEVNULL, text=True, **options))
            stack.callback(lambda: process.poll() is None and process.kill())
            return process

        coordinator = start("coordinator", "--listen", "127.0.0.1:0", "--nnodes", "2", "--run-dir", str(folder / "run"),
                            "--", "sleep", "60", stdout=subprocess.PIPE)
        address = coordinator.stdout.readline().split()[-1]
        watched = {"coordinator": coordinator.pid}
        for node in ("a", "b"):
            agent = start("agent", "--coordinator", address, "--node", node, "--nproc", "2", stdout=subprocess.DEVNULL)
            watched[f"agent {node}"] = agent.pid
        deadline = time.monotonic() + 30
        events = folder / "run" / "events.jsonl"
        while events.read_text(encoding="utf-8").count('"worker_started"') < 4:
            if time.monotonic() > deadline or coordinator.poll() is not None:
                raise JobError("the workers of two nodes do not start")
            time.sleep(0.05)
        time.sleep(SETTLE_SECONDS)
        before = {name: look(pid) for name, pid in watched.items()}
        time.sleep(MEASURE_SECONDS)
        after = {name: look(pid) for name, pid in watched.items()}
        coordinator.send_signal(signal.SIGTERM)
        coordinator.wait(60)
    show("a coordinator and two agents over TCP (ddprun coordinator, ddprun agent), 2 × sleep each", watched, before, after)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, help="measure two nodes alone, with the ddprun of this folder")
    options = parser.parse_args()
    if options.bin is None:
        one_node()
    two_nodes(str((options.bin or BIN) / "ddprun"))
    return 0


sys.exit(main())
