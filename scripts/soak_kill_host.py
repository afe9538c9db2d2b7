#!/usr/bin/env python3
"""Kills ddprun on the host node of a job over three nodes at random moments, and starts the job again.

Each node is a network namespace (tests/cluster/lab.py; needs root) that runs the same command. Each run is the whole job in a
fresh run folder: kill -9 of the ddprun that hosts the coordinator; after lease + 2 s nothing may be left on its node, and
nothing but the waiting ddprun on the others. Then the same command with --resume begins on each node, and must end with 0
and the weights of an undisturbed job. By turns the members of the killed job still wait then, or have been told to go.

  scripts/soak_kill_host.py [--runs N] [--seed N] [--members wait|go]

Prints the seed; the same seed chooses the same moments. Exit code 1 when anything was wrong.
"""

import argparse
import os
import pathlib
import random
import signal
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from lab import Lab, LabError, require, wait_until  # noqa: E402
from nodes_job import NodesJob  # noqa: E402

NODES = "abc"
LEASE_SECONDS = 1
LINK_SECONDS = 0.002
RUN_SECONDS_MAX = 60
ANCHORS = ["node_joined", "generation_started", "worker_ready", "checkpoint_started", "checkpoint_committed"]
SETTINGS = [part for pair in ("train.steps=60", "train.evaluate=false", "data.batch_size=8", "data.workers=1",
                              "checkpoint.every_steps=10") for part in ("--set", pair)]


def new_job(lab, *extra):
    return NodesJob(lab, [str(ROOT / "examples" / "fashion_mnist.cfg")], len(NODES), options=[*SETTINGS, *extra],
                    env={"OMP_NUM_THREADS": "1"}, lease=LEASE_SECONDS)


def new_lab(seed=0):
    lab = Lab(NODES, network="switch", seed=seed, shared_size="64m")
    for name in NODES:
        lab.links_of(name, delay_seconds=LINK_SECONDS)
    return lab


def end_of(job, digest=None):
    """Waits for the end of a job and all its members, and checks it; returns its digest."""
    code, result = job.wait_end(RUN_SECONDS_MAX)
    if code != 0:
        raise LabError(f"the job ended with {code}; {job.told()}")
    if digest and result["weights_digest"] != digest:
        raise LabError(f"weights digest {result['weights_digest']}, undisturbed {digest}; {job.told()}")
    for name, process in job.members.items():
        # One that has waited takes part; the second one on its node is told so.
        if process.wait(10) != 0 and "is here already" not in process.output():
            raise LabError(f"the member on node {name} ended with {process.code}; {job.told()}")
    return result["weights_digest"]


def undisturbed():
    with new_lab() as lab:
        return end_of(new_job(lab).start())


def kill_host(job, chooser):
    """Kills the host at a random moment; returns what it was, or None when the job had ended before."""
    anchor, delay = chooser.choice(ANCHORS), chooser.uniform(0, 0.4)
    job.wait_event(anchor)
    wait_from = time.monotonic()
    while time.monotonic() < wait_from + delay:
        time.sleep(0.002)
    if job.host_process.poll() is not None:
        return None
    job.host_process.signal(signal.SIGKILL)
    return f"{anchor} +{delay:.2f} s"


def left(lab, killed):
    """What must not run any more: everything but the launchers of the other nodes."""
    launchers = {(process.node.name, process.pid) for process in killed.members.values()}
    return {name: [found for found in processes.values() if (name, found[0]) not in launchers]
            for name, processes in lab.processes().items()
            if any((name, found[0]) not in launchers for found in processes.values())}


def one(seed, digest, members_wait):
    """Returns what was done."""
    chooser = random.Random(f"kill-host-{seed}")
    with new_lab(seed) as lab:
        job = new_job(lab).start()
        moment = kill_host(job, chooser)
        if moment is None:
            end_of(job, digest)
            return "the job had ended before"
        start = time.monotonic()
        wait_until(lambda: not left(lab, job), LEASE_SECONDS + 2,
                   f"end of every worker and keeper ({moment}); left are {left(lab, job)}")
        seconds = time.monotonic() - start
        others = [process for process in job.members.values() if process is not job.host_process]
        if not members_wait:
            for process in others:
                process.signal(signal.SIGTERM)
            for process in others:
                process.wait(10)
        end_of(new_job(lab, "--resume").start(), digest)
        for process in others:
            process.wait(10)
        wait_until(lambda: not lab.processes(), 5, f"end of every process; left are {lab.processes()}")
    return f"killed at {moment}, nothing left after {seconds:.2f} s, members {'waited' if members_wait else 'went'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little"), help="of the first run")
    parser.add_argument("--members", choices=["both", "wait", "go"], default="both", help="of the killed job")
    options = parser.parse_args()
    try:
        require()
    except unittest.SkipTest as reason:
        print(f"skipped: {reason}")
        return 0
    digest = undisturbed()
    wrong = []
    for seed in range(options.seed, options.seed + options.runs):
        members_wait = bool(seed % 2) if options.members == "both" else options.members == "wait"
        try:
            print(f"seed {seed}: ok, {one(seed, digest, members_wait)}", flush=True)
        except LabError as error:
            wrong.append(seed)
            print(f"seed {seed}: WRONG, {error}", flush=True)
    print(f"{options.runs} runs, {len(wrong)} wrong" + (f": seeds {' '.join(map(str, wrong))}" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
