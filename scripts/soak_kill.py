#!/usr/bin/env python3
"""Kills parts of the reference job at random moments and compares the final weights with those of an undisturbed run.

Each run is the whole job in a fresh run folder; at its random moment something is killed with SIGKILL:
  worker      a random worker            rank0     the worker of rank 0          two   two workers at once
  checkpoint  a random worker, between checkpoint_started and the commit
  start       a random worker, before it says that it is ready
  keeper      the ddprun-keeper
  launcher    ddprun itself: nothing may be left after 2 s, and --resume must end with the same weights

  scripts/soak_kill.py [--runs N] [--kinds worker,rank0,…] [--seed N] [--nproc N] [--set section.key=value]…

Prints the seed; the same seed chooses the same victims and delays. Exit code 1 on any mismatch.
"""

import argparse
import os
import random
import signal
import sys
import time

from job_run import REFERENCE_CONFIG, Job, JobError, descendants, still_there

KINDS = ["worker", "rank0", "two", "checkpoint", "start", "keeper", "launcher"]
RUN_SECONDS_MAX = 300
GONE_SECONDS_MAX = 2.0
TRIES_MAX = 5  # a kill that came after the end, or outside its window, is tried again so many times


class Missed(Exception):
    """The moment had passed before the kill could be made: the run proves nothing."""


class Undisturbed:
    """What a run without faults gave: digest, accuracy, and the times that random moments are drawn from."""

    def __init__(self, arguments):
        with Job(arguments, RUN_SECONDS_MAX) as job:
            code, result = job.wait_end()
            if code != 0 or not result.get("weights_digest"):
                raise JobError(f"the undisturbed run ended with {code}, digest {result.get('weights_digest')!r}")
            self.digest = result["weights_digest"]
            self.accuracy = result.get("metrics", {}).get("test_accuracy")
            self.seconds = job.find("job_finished")["t"] - job.start_time
            ready = [e["t"] for e in job.events if e["event"] == "worker_ready"]
            started = [e["t"] for e in job.events if e["event"] == "worker_started"]
            self.start_seconds = max(ready) - min(started)
            self.checkpoints = [e["step"] for e in job.events if e["event"] == "checkpoint_committed"]


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        raise Missed(f"process {pid} had ended already") from None


def all_workers(job, nproc):
    """Waits until every worker of the newest generation has started; returns rank → pid."""
    def started():
        pids = job.worker_pids(job.generation())
        return pids if len(pids) == nproc else None
    return job.wait_until(started, f"start of {nproc} workers")


def random_moment(job, chooser, plain, scale):
    """Lets the job run to a random moment of its life: after its start or one of its commits, but for the last one, and a while.

    The while is at most `scale` times the mean gap between two commits of the undisturbed run, since the machine may be
    quicker now than it was then; one that was too long is halved when the run is repeated.
    """
    anchors = [None, *plain.checkpoints[:-1]]
    anchor = chooser.choice(anchors)
    if anchor is None:
        job.wait_event("generation_started")
    else:
        job.wait_event("checkpoint_committed", step=anchor)
    job.wait_moment(chooser.uniform(0.0, scale * plain.seconds / (len(plain.checkpoints) + 1)))


def strike(kind, job, chooser, plain, nproc, scale):
    """Waits for the moment and kills; returns what was done, for the report."""
    if kind == "start":
        victim = chooser.randrange(nproc)
        delay = chooser.uniform(0.0, 0.8 * scale * plain.start_seconds)
        pid = job.wait_event("worker_started", rank=victim)["pid"]
        job.wait_moment(delay)
        if job.find("worker_ready", rank=victim):
            raise Missed("the worker was ready already")
        kill(pid)
        return f"rank {victim} {delay:.2f} s after its start"
    if kind == "checkpoint":
        victim, step = chooser.randrange(nproc), chooser.choice(plain.checkpoints)
        delay = chooser.uniform(0.0, 0.01)
        job.wait_event("checkpoint_started", step=step)
        job.wait_moment(delay)
        if job.find("checkpoint_committed", step=step):
            raise Missed("the checkpoint was committed already")
        kill(all_workers(job, nproc)[victim])
        return f"rank {victim} during the checkpoint of step {step}"
    random_moment(job, chooser, plain, scale)
    if kind == "launcher":
        return "ddprun"  # the caller kills it: what follows is another story
    if kind == "keeper":
        all_workers(job, nproc)
        keepers = [pid for pid, (_, name) in descendants(job.process.pid).items() if name == "ddprun-keeper"]
        if not keepers:
            raise Missed("no keeper runs")
        kill(keepers[0])
        return "the keeper"
    pids = all_workers(job, nproc)
    victims = {"worker": [chooser.randrange(nproc)], "rank0": [0], "two": chooser.sample(range(nproc), 2)}[kind]
    for victim in victims:
        kill(pids[victim])
    return "rank " + " and ".join(map(str, victims))


def kill_launcher(job):
    """Kills ddprun and checks that every process of the job is gone in time."""
    processes = descendants(job.process.pid)
    job.process.kill()
    job.process.wait()
    killed = time.monotonic()
    while still_there(processes):
        if time.monotonic() - killed > GONE_SECONDS_MAX:
            raise JobError(f"left {GONE_SECONDS_MAX} s after kill -9 of ddprun: {still_there(processes)}")
        time.sleep(0.01)
    return f"ddprun, everything gone after {time.monotonic() - killed:.2f} s"


def check(code, result, plain, told):
    if code != 0 or result.get("status") != "succeeded":
        raise JobError(f"{told}: ended with {code}: {result.get('failure_kind')} {result.get('first_failure')}")
    if result["weights_digest"] != plain.digest:
        raise JobError(f"{told}: weights_digest {result['weights_digest']}, undisturbed {plain.digest}")


def disturbed(kind, arguments, chooser, plain, nproc, scale):
    """One run with one fault; returns a line about it. Raises JobError when the outcome is wrong."""
    with Job(arguments, RUN_SECONDS_MAX) as job:
        moment = time.time()
        try:
            told = strike(kind, job, chooser, plain, nproc, scale)
            moment = time.time()
            if kind == "launcher":
                if job.process.poll() is not None or not (job.run_dir / "job.json").exists():
                    raise Missed("ddprun had ended or not yet begun")
                told = kill_launcher(job)
        except JobError:
            if job.process.poll() == 0:
                raise Missed("the job ended before the moment") from None
            raise
        at = moment - job.start_time
        if kind == "launcher":
            with Job(["--resume", *arguments], RUN_SECONDS_MAX, run_dir=job.run_dir) as resumed:
                try:
                    code, result = resumed.wait_end()
                    check(code, result, plain, told)
                except JobError:
                    job.keep = True
                    raise
        else:
            code, result = job.wait_end()
            check(code, result, plain, told)
            if result["generations"] < 2:
                raise Missed("the kill came when the work was done")
        return f"{told} at {at:.2f} s; {result['generations']} generations, lost {result.get('time_lost_s')} s"


def one_run(kind, index, arguments, seed, plain, nproc):
    """Repeats a run whose kill missed its moment, with the next numbers of the same generator."""
    chooser = random.Random(f"{seed}-{kind}-{index}")
    for attempt in range(TRIES_MAX):
        try:
            return disturbed(kind, arguments, chooser, plain, nproc, 0.5**attempt)
        except Missed as reason:
            print(f"  {kind} {index}: again, since {reason}", flush=True)
    raise JobError(f"the moment was missed {TRIES_MAX} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--nproc", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--config", default=REFERENCE_CONFIG)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"unknown kind {unknown[0]}; known: {', '.join(KINDS)}")
    arguments = ["--nproc", str(options.nproc)]
    for pair in options.set:
        arguments += ["--set", pair]
    arguments.append(options.config)

    print(f"seed {options.seed}", flush=True)
    plain = Undisturbed(arguments)
    print(f"undisturbed: {plain.seconds:.1f} s, weights_digest {plain.digest}, test accuracy {plain.accuracy}, "
          f"{len(plain.checkpoints)} checkpoints", flush=True)
    wrong = 0
    for kind in kinds:
        good = 0
        for index in range(options.runs):
            try:
                print(f"  {kind} {index}: {one_run(kind, index, arguments, options.seed, plain, options.nproc)}", flush=True)
                good += 1
            except JobError as error:
                print(f"  {kind} {index}: WRONG: {error}", flush=True)
        print(f"{kind}: {good} of {options.runs} ended with the undisturbed weights_digest", flush=True)
        wrong += options.runs - good
    return 1 if wrong else 0


sys.exit(main())
