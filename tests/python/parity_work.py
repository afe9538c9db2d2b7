"""Runs the cases of parity_settings, some at the same time, and says of each how far apart both sides are.

Cases are put together to units: one group of Python processes is started for several references on as many ranks. Which units there
are depends on the cases alone, and what a unit gives on nothing else, so results are the same however many run beside each other.
"""

import collections
import concurrent.futures
import copy
import dataclasses
import multiprocessing
import os
import shutil
import sys
import threading
import time

import torch

import parity_run
from parity_difference import ParityError

WRONG = 1.01  # factor of the learning rate that a comparison must notice
TOGETHER = 6  # cases of one group of reference processes
MODEL_SECONDS = {"resnet50": 25, "resnet18": 6}  # of one step in about: what takes long begins first


@dataclasses.dataclass
class Outcome:
    """What a case gave: differences of each part, those of a wrong learning rate (None: not tried), and what is wrong."""

    case: object
    difference: dict
    noticed: dict
    complaints: list

    def lines(self):
        """For people."""
        numbers = [f"{part} {self.difference[part]:.1e}" for part in self.case.compares if part in self.difference]
        if self.noticed:
            numbers.append(f"wrong lr {self.noticed[shown(self.case)]:.1e}")
        return [f"{'FAILED' if self.complaints else 'ok'}: {self.case.name}: {', '.join(numbers)}", *(f"  {line}" for line in self.complaints)]


def limit(case, part):
    """The tolerance of a part of the comparison."""
    if part in ("loss", "evaluation"):
        return case.tolerance.loss
    if part == "update" or case.pieces and part in ("optimizer", "ema"):
        return case.tolerance.update
    return {"lr": 1e-9, "scale": 0.0, "counters": 0.0}.get(part, case.tolerance.weights)


def shown(case):
    """What shows a wrong learning rate: in pieces no step begins with the weights that it led to, so the loss cannot."""
    return "update" if case.pieces else "loss"


def with_wrong_lr(setting):
    changed = copy.deepcopy(setting)
    changed["train"]["lr"] *= WRONG
    return changed


def complaints(case, difference, noticed):
    """What is wrong with a measured case."""
    for part in case.compares:
        if part in difference and not difference[part] <= limit(case, part):
            yield f"{part} differs by {difference[part]:.2e} ({difference.get(part + ' of', '')}), allowed are {limit(case, part):.0e}"
    if case.alone and not difference["alone"]:
        yield "in no step gradients overflowed on some ranks alone"
    if noticed is not None and not noticed[shown(case)] > limit(case, shown(case)):
        yield f"a learning rate 1 % too high goes unnoticed: it changes the {shown(case)} by {noticed[shown(case)]:.2e}"


def peer_ranks(case):
    return case.peer_ranks or case.ranks


def units(cases):
    """Lists of numbers of cases. Those in pieces are alone: their checkpoints of every step are too large to keep for others."""
    groups = collections.defaultdict(list)
    for number, case in enumerate(cases):
        alone = case.pieces or peer_ranks(case) == 1 or case.peer_program == "ddprun"
        groups[number if alone else f"{peer_ranks(case)} ranks"].append(number)
    return [group[i:i + TOGETHER] for group in groups.values() for i in range(0, len(group), TOGETHER)]


def seconds(case):
    """About how long a case takes."""
    train = case.setting["train"]
    micro_steps = train["steps"] * train.get("accumulation_steps", 1)
    return 5 * max(case.ranks, peer_ranks(case)) + micro_steps * MODEL_SECONDS.get(case.setting["model"]["name"], 0)


def run_unit(workshop, cases):
    """Outcomes of the cases. Whatever goes wrong with one is its complaint: the others are still compared."""
    runs, failed = [], []
    for case in cases:
        try:
            setting = parity_run.in_pieces(case.setting) if case.pieces else parity_run.defaults(case.setting)
            runs.append((case, workshop.ddprun(setting, case.ranks)))
        except ParityError as error:
            failed.append(Outcome(case, {}, None, [str(error)]))
    try:
        done = compare_all(workshop, runs)
    except Exception as error:  # pylint: disable=broad-except  # of PyTorch, of any kind
        done = [Outcome(case, {}, None, [f"the reference: {type(error).__name__}: {error}"]) for case, _ in runs]
    for _, mine in runs:
        if "checkpoints" in mine:
            shutil.rmtree(mine["checkpoints"])
    return sorted(done + failed, key=lambda outcome: cases.index(outcome.case))


def compare_all(workshop, runs):
    """The references to runs of ddprun, and how far they are from these."""
    jobs = []
    for case, mine in runs:
        extra = {"checkpoints": str(mine["checkpoints"])} if case.pieces else {}
        jobs.append({**parity_run.defaults(case.peer or case.setting), **extra})
    wrong = [with_wrong_lr(job) for job, (case, _) in zip(jobs, runs) if case.wrong]
    results = peers(workshop, jobs + wrong, runs[0][0]) if runs else []
    changed = iter(results[len(runs):])
    return [compare(workshop, case, mine, peer, next(changed) if case.wrong else None) for (case, mine), peer in zip(runs, results)]


def peers(workshop, jobs, case):
    """Results of what a case is held against."""
    if case.peer_program == "ddprun":
        return [workshop.ddprun(job, peer_ranks(case)) for job in jobs]
    return workshop.reference(jobs, peer_ranks(case))


def compare(workshop, case, mine, peer, wrong):
    try:
        difference = parity_run.compare(mine, peer)
        noticed = parity_run.compare(mine, wrong) if wrong is not None else None
    except ParityError as error:
        return Outcome(case, {}, None, [str(error)])
    if case.setting["train"].get("evaluate"):
        test = workshop.samples(parity_run.defaults(case.setting), "test")
        difference["evaluation"] = parity_run.evaluation_difference(case.setting, mine, *test.at(0))
    return Outcome(case, difference, noticed, list(complaints(case, difference, noticed)))


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def begin_worker(device, folder):
    """In a process that runs units; it ends with the one that started it, also where that is killed."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    begin_worker.workshop = parity_run.Workshop(device, folder)


def run_in_worker(cases):
    return run_unit(begin_worker.workshop, cases)


def run_all(cases, device, jobs):
    """Outcomes in the order of the cases, each as soon as it and all before it are there; `jobs` units run at the same time."""
    with parity_run.temporary_folder() as folder:
        parity_run.Workshop(device, folder).prepare([case.peer or case.setting for case in cases])
        numbers = sorted(units(cases), key=lambda unit: -sum(seconds(cases[number]) for number in unit)) if jobs > 1 else units(cases)
        begun, ready, following = time.monotonic(), {}, 0
        with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), begin_worker, (device, folder)) as pool:
            futures = {pool.submit(run_in_worker, [cases[number] for number in unit]): unit for unit in numbers}
            for future in concurrent.futures.as_completed(futures):
                ready.update(zip(futures[future], future.result()))
                for number in futures[future] if jobs > 1 else ():
                    print(f"{time.monotonic() - begun:.0f} s: {ready[number].lines()[0]}", file=sys.stderr, flush=True)
                while following in ready:
                    yield ready[following]
                    following += 1
