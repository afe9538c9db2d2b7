#!/usr/bin/env python3
"""Several nodes (network namespaces with real processes), beside torchrun in the same namespaces and run.

  propagation  kill -9 of a worker on node a → the workers of node b have ended, seen by pidfd
  loss         a node's link is cut (frames vanish) → the first worker of the next generation on the others
  rendezvous   exec of the last of 64 agents → all workers have been started

  scripts/bench_nodes.py [--only propagation,loss,rendezvous] [--kills 50] [--cuts 10] [--agents 64] [--no-peer]
Needs root. Prints lines for the table of docs/benchmarks.md.
"""

import argparse
import os
import pathlib
import select
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from bench_report import Sample, pins, print_row  # noqa: E402
from lab import Lab, LabError, wait_until  # noqa: E402
from nodes_job import PORT, NodesJob, example  # noqa: E402

PYTHON = ROOT / ".deps" / "venv" / "bin" / "python"
PEER_LOSS_SECONDS_MAX = 60
WAIT = ["sleep", "100000"]


def await_end(descriptors, start, seconds):
    """Seconds from start until all of these processes have ended; LabError when they do not."""
    for descriptor in descriptors:
        left = seconds - (time.monotonic() - start)
        if not select.select([descriptor], [], [], max(0.0, left))[0]:
            raise LabError(f"a worker still runs {seconds} s after the kill")
    took = time.monotonic() - start
    for descriptor in descriptors:
        os.close(descriptor)
    return took


def machine_pids(node, name):
    return sorted(pid for pid, (_, found, _) in node.processes().items() if found == name)


def kill_one_await_others(victims, others):
    """Kills a worker; returns the seconds until the others, on another node, have ended."""
    descriptors = [os.pidfd_open(pid) for pid in others]
    if select.select(descriptors, [], [], 0)[0]:
        raise LabError("a worker had ended before one was killed")
    start = time.monotonic()  # before the kill: this process may have to wait for a core right behind it
    os.kill(victims[0], signal.SIGKILL)
    return await_end(descriptors, start, 60)


def new_workers(lab, name, processes, old):
    """Waits until both nodes run workers that are none of the old ones; returns those of each node."""
    def there():
        found = [machine_pids(lab[node], name) for node in "ab"]
        whole = all(len(pids) == processes for pids in found) and not set(sum(found, [])) & old
        return found if whole else None
    return wait_until(there, 120, "workers of the next generation")


def propagation(lab, name, processes, kills, ready=None):
    """The same workers killed again and again. ready(generations so far) waits until they may be killed."""
    values, old = [], set()
    for kill in range(kills):
        victims, others = new_workers(lab, name, processes, old)
        if ready:
            ready(kill + 1)
        else:
            time.sleep(0.3)  # the programs have begun; not part of what is measured
        values.append(kill_one_await_others(victims, others))
        old |= {*victims, *others}
    return values


def torchrun(node, nnodes, nproc, endpoint, *more):
    return [PYTHON, "-m", "torch.distributed.run", "--nnodes", nnodes, "--nproc-per-node", nproc, "--rdzv-backend", "c10d",
            "--rdzv-id", "bench", "--rdzv-endpoint", endpoint, "--local-addr", node.address, "--max-restarts", "1000", *more]


def peer_propagation(kills, processes):
    with Lab("ab") as lab:
        for name in "ab":
            lab[name].spawn(torchrun(lab[name], 2, processes, f"{lab['a'].address}:{PORT}", "--no-python", *WAIT), cwd=ROOT)
        return Sample(propagation(lab, "sleep", processes, kills))


def trainer_propagation(options, processes):
    """One job whose workers save checkpoints, so that each failure is the first in a row and its restart comes at once."""
    with Lab("ab") as lab:
        job = NodesJob(lab, ["--", example("c_trainer"), "100000000", "10000"], 2, way=options.way, nproc=processes, lease=3,
                       options=["--max-restarts", "100000", "--node-strikes", "0"]).start()
        return Sample(propagation(lab, "c_trainer", processes, options.kills, lambda generation: job.wait_event(
            "checkpoint_committed", generation=generation)))


def program_propagation(options, processes):
    """A job for each kill: restarts of a program that has not run for long come later each time."""
    values = []
    with Lab("ab") as lab:
        while len(values) < options.kills:
            job = NodesJob(lab, ["--", *WAIT], 2, way=options.way, nproc=processes, lease=3,
                           options=["--max-restarts", "0"], run_dir=lab.shared / f"run-{len(values)}").start()
            job.wait_workers(1)
            values += propagation(lab, "sleep", processes, 1)
            job.wait_end()
            for process in job.members.values():
                process.wait(20)
    return Sample(values)


def bench_propagation(options):
    processes = 2
    peer = None if options.no_peer else peer_propagation(options.kills, processes)
    for name, ours in (("c_trainer, which uses libddprun", trainer_propagation(options, processes)),
                       ("sleep", program_propagation(options, processes))):
        command = f"scripts/bench_nodes.sh --only propagation: worker killed on one node → workers of the other ended ({name})"
        print_row(command, f"torchrun c10d, sleep: {peer.text()}" if peer else "not run", ours.text(),
                  f"1/{peer.median / ours.median:.1f}" if peer else "–", f"torch {pins()['TORCH_VERSION']}")


def bench_loss(options):
    values = []
    with Lab("abc", network="switch") as lab:
        job = NodesJob(lab, ["--", example("c_trainer"), "100000000", "10000"], "2:3", way=options.way, lease=3,
                       options=["--max-restarts", "100000", "--node-strikes", "0"]).start()
        for _ in range(options.cuts):
            started = job.wait_until(lambda: job.find("generation_started", generation=job.generation(), world_size=3), 60,
                                     "a generation of three nodes")
            workers = job.wait_workers(started["generation"], 60)
            step = job.wait_event("training_progressed", generation=started["generation"])
            assert len(workers) == 3 and step
            cut = time.time()
            lab.cut("c")
            first = job.wait_until(lambda: next((e for e in job.events if e["event"] == "worker_started" and
                                                 e["generation"] > started["generation"]), None), 60, "the next generation")
            values.append(first["t"] - cut)
            lab.heal("c")
    peer = "not run" if options.no_peer else peer_loss()
    ours = Sample(values)
    print_row("scripts/bench_nodes.sh --only loss: link cut → first worker of the next generation on the others (lease 3 s)",
              peer, ours.text(), "–", f"torch {pins()['TORCH_VERSION']}")


def peer_loss():
    """What torchrun does when a node's link is cut: a text."""
    with Lab("abc", network="switch") as lab:
        for name in "abc":
            lab[name].spawn(torchrun(lab[name], "2:3", 1, f"{lab['a'].address}:{PORT}", "--no-python", *WAIT), cwd=ROOT)
        wait_until(lambda: all(machine_pids(lab[name], "sleep") for name in "abc"), 180, "torchrun's workers")
        old = machine_pids(lab["a"], "sleep")
        lab.cut("c")
        start = time.monotonic()
        try:
            wait_until(lambda: machine_pids(lab["a"], "sleep") not in (old, []), PEER_LOSS_SECONDS_MAX, "a new world")
        except LabError:
            return f"torchrun --nnodes 2:3: no new generation within {PEER_LOSS_SECONDS_MAX} s"
        return f"torchrun --nnodes 2:3: {time.monotonic() - start:.1f} s"


def bench_rendezvous(options):
    names = [f"n{index:02d}" for index in range(options.agents)]
    values = {"generation": [], "workers": []}
    with Lab(names) as lab:
        for _ in range(options.rounds):
            job = NodesJob(lab, ["--", *WAIT], options.agents, way="apart", lease=3,
                           run_dir=lab.shared / f"run-{len(values['workers'])}")
            job.start(names[:-1])
            job.wait_until(lambda job=job: sum(e["event"] == "node_joined" for e in job.events) == options.agents - 1, 120,
                           "all agents but one")
            time.sleep(1.0)  # what the others do at their start is over
            begin = time.time()
            job.join(names[-1])
            started = job.wait_event("generation_started", 60)
            workers = job.wait_workers(1, 60)
            values["generation"].append(started["t"] - begin)
            values["workers"].append(max(event["t"] for event in workers.values()) - begin)
            job.host_process.signal(signal.SIGTERM)
            job.host_process.wait(60)
            for process in job.members.values():
                process.wait(60)
    peer = "not run" if options.no_peer else peer_rendezvous(options.peer_agents or options.agents)
    ours = Sample(values["workers"])
    print_row(f"scripts/bench_nodes.sh --only rendezvous: exec of the last of {options.agents} agents → all workers started "
              f"(generation ordered after {Sample(values['generation']).text()})", peer, ours.text(), "–",
              f"torch {pins()['TORCH_VERSION']}")


def peer_rendezvous(agents):
    """The same with torchrun: a text. Its agents are started a few at a time, since each loads torch."""
    names = [f"n{index:02d}" for index in range(agents)]
    with Lab(names) as lab:
        endpoint = f"{lab[names[0]].address}:{PORT}"

        def start(name):
            return lab[name].spawn(torchrun(lab[name], agents, 1, endpoint, "--no-python", *WAIT), cwd=ROOT)
        for name in names[:-1]:
            process = start(name)
            # Loaded: it connects to the store of the first one, or listens.
            wait_until(lambda name=name: lab[name].run(["ss", "-tnH"])[1].strip() or name == names[0], 60, f"torchrun on {name}")
            if process.poll() is not None:
                return f"torchrun ended with {process.code}"
        time.sleep(3.0)
        begin = time.monotonic()
        start(names[-1])
        wait_until(lambda: all(machine_pids(node, "sleep") for node in lab.nodes.values()), 120, "torchrun's workers")
        return f"torchrun c10d, {agents} agents: {time.monotonic() - begin:.2f} s"


BENCHES = {"propagation": bench_propagation, "loss": bench_loss, "rendezvous": bench_rendezvous}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BENCHES))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5, help="of rendezvous")
    parser.add_argument("--peer-agents", type=int, help="torchrun's agents, where fewer are to be borne")
    parser.add_argument("--way", default="apart", choices=["together", "apart"])
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    for name in options.only.split(","):
        BENCHES[name](options)
    return 0


sys.exit(main())
