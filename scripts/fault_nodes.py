#!/usr/bin/env python3
"""Runs jobs over four nodes (network namespaces with real processes) under random faults, and checks how they end.

What a seed does is a pure function of it (tests/cluster/fault_schedule.py): how the job is started, which faults come and
when. `--seed S` runs one again, tells all, and keeps its folder. Checked is that the job ends with code 0 and, where the
world size stayed, with the weights of the undisturbed job; that no process is left on any node; that generations never
overlapped and had the right ranks; that planned changes cost no restart; that every checkpoint is whole.

  scripts/fault_nodes.py --seeds 1..500 [--parallel 3]     a batch
  scripts/fault_nodes.py --seed 17                         one, once more
  scripts/fault_nodes.py --seconds 45                      new seeds for so long
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import fault_run  # noqa: E402
import fault_schedule  # noqa: E402
from lab import Lab, LabError, require  # noqa: E402

SCHEDULE_SECONDS_MAX = fault_run.JOB_SECONDS_MAX + 60
TRAINERS = ["builtin", "fake", "mixed"]


def make_lab(schedule):
    return Lab([*fault_schedule.NODES, fault_schedule.SPARE], network="switch", seed=schedule.seed, shared_size="64m")


def undisturbed_digest(steps=None):
    """weights_digest of the built-in job without faults; also warms the caches of files."""
    schedule = fault_schedule.Schedule(0, "builtin", "apart", "4", [], False, {}, [])
    with make_lab(schedule) as lab:
        run = fault_run.Run(lab, schedule, steps)
        code, result = run.go()
        run.end_members()
        if code != 0 or not result.get("weights_digest"):
            raise LabError(f"the undisturbed job ended with {code}; {run.job.told()}")
        return result["weights_digest"]


def keep_folder(lab, seed):
    """Copies what the run has left to a folder that outlives the lab."""
    target = pathlib.Path(tempfile.mkdtemp(prefix=f"ddprun-fault-{seed}-"))
    shutil.copytree(lab.folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("filler", "*.safetensors"))
    return target


def one(options):
    """Runs one seed in this process; returns a dict that the driver of a batch reads."""
    schedule = fault_schedule.make_schedule(options.seed, options.trainer, options.ways.split(","), options.kinds.split(","))
    start = time.monotonic()
    answer = {"seed": options.seed, "schedule": str(schedule), "problems": [], "kinds": [], "missed": [], "generations": 0}
    with make_lab(schedule) as lab:
        run = fault_run.Run(lab, schedule, options.steps)
        try:
            code, result = run.go()
            run.end_members()
            run.check(code, result, options.digest)
        except LabError as error:
            run.problems.append(str(error))
        answer.update(problems=run.problems, kinds=[fault.kind for _, fault, _ in run.done], missed=run.missed,
                      generations=run.job.generation(), seconds=round(time.monotonic() - start, 1))
        sizes = [e["world_size"] for e in run.job.events if e["event"] == "generation_started"]
        answer["sizes"] = sizes
        if run.problems or options.keep:
            answer["folder"] = str(keep_folder(lab, options.seed))
            told = pathlib.Path(answer["folder"]) / "told"
            told.write_text(f"{schedule}\n{run.job.told()}\n" + "\n".join(run.problems) + "\n", encoding="utf-8")
    return answer


def line(answer):
    verdict = "ok" if not answer["problems"] else "WRONG"
    missed = f"; missed {' '.join(answer['missed'])}" if answer["missed"] else ""
    sizes = "-".join(map(str, answer.get("sizes", [])))
    text = f"seed {answer['seed']}: {verdict}, worlds {sizes}, {answer.get('seconds', '?')} s{missed} | {answer['schedule']}"
    for problem in answer["problems"]:
        text += f"\n    {problem}"
    if answer.get("folder"):
        text += f"\n    kept: {answer['folder']}"
    return text


class Batch:
    """Seeds run by processes of their own, a few at a time."""

    def __init__(self, options, digest):
        self.options, self.digest = options, digest
        self.running = {}
        self.answers = []

    def begin(self, seed):
        command = [sys.executable, __file__, "--seed", str(seed), "--json", "--trainer", self.options.trainer,
                   "--ways", self.options.ways, "--kinds", self.options.kinds]
        if self.digest:
            command += ["--digest", self.digest]
        if self.options.steps:
            command += ["--steps", str(self.options.steps)]
        output = tempfile.TemporaryFile("w+")
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self.running[process] = (seed, output, time.monotonic())

    def collect(self):
        for process, (seed, output, start) in list(self.running.items()):
            if process.poll() is None:
                if time.monotonic() - start < SCHEDULE_SECONDS_MAX:
                    continue
                process.kill()
                process.wait()
            del self.running[process]
            output.seek(0)
            lines = output.read().splitlines()
            output.close()
            try:
                answer = json.loads(lines[-1])
            except (IndexError, ValueError):
                answer = {"seed": seed, "schedule": "", "kinds": [], "missed": [],
                          "problems": [f"the runner itself ended with {process.returncode}: " + "\n".join(lines[-15:])]}
            self.answers.append(answer)
            print(line(answer), flush=True)

    def run(self, seeds):
        try:
            for seed in seeds:
                while len(self.running) >= self.options.parallel:
                    self.collect()
                    time.sleep(0.02)
                self.begin(seed)
            while self.running:
                self.collect()
                time.sleep(0.02)
        finally:
            for process in self.running:
                process.kill()

    def table(self):
        hits, wrong = collections.Counter(), collections.Counter()
        for answer in self.answers:
            for kind in set(answer["kinds"]) or {"(none hit)"}:
                hits[kind] += 1
                wrong[kind] += bool(answer["problems"])
        print(f"\n{'fault':<12} {'runs':>5} {'wrong':>6}")
        for kind in sorted(hits):
            print(f"{kind:<12} {hits[kind]:>5} {wrong[kind]:>6}")
        bad = sorted(answer["seed"] for answer in self.answers if answer["problems"])
        print(f"{len(self.answers)} runs, {len(bad)} wrong" + (f": seeds {' '.join(map(str, bad))}" if bad else ""))
        if bad:
            print(f"again: scripts/fault_nodes.py --trainer {self.options.trainer} --seed {bad[0]}")
        return 1 if bad else 0


def seeds_of(options):
    if options.seeds:
        first, _, last = options.seeds.partition("..")
        yield from range(int(first), int(last or first) + 1)
        return
    chooser = random.Random(os.urandom(8))
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        yield chooser.randrange(1_000_000, 1_000_000_000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", metavar="A..B")
    parser.add_argument("--seconds", type=float, help="begin new runs for so long")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--trainer", choices=TRAINERS, default="builtin")
    parser.add_argument("--ways", default="together,apart", help="the same command on each node; coordinator and agents apart")
    parser.add_argument("--kinds", default=",".join(fault_schedule.KINDS), help="of faults: " +
                        "; ".join(f"{kind}: {what}" for kind, (_, what) in fault_schedule.KINDS.items()))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--digest", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help="keep every folder (with --seed it is always kept)")
    options = parser.parse_args()
    try:
        require()
    except unittest.SkipTest as reason:
        print(f"skipped: {reason}")
        return 0
    if options.seed is not None:
        options.keep = options.keep or not options.json
        if options.digest is None and options.trainer != "fake":
            options.digest = undisturbed_digest(options.steps)
        answer = one(options)
        print(json.dumps(answer) if options.json else line(answer), flush=True)
        return 1 if answer["problems"] else 0
    if not options.seeds and not options.seconds:
        parser.error("one of --seed, --seeds and --seconds says what to run")
    batch = Batch(options, undisturbed_digest(options.steps) if options.trainer != "fake" else None)
    batch.run(seeds_of(options))
    return batch.table()


if __name__ == "__main__":
    sys.exit(main())
