"""Trains the same settings with ddprun and with PyTorch, in the same run, and says how far apart they are: see docs/parity.md.

  scripts/parity.py                 everything (about an hour); exit code 1 when a difference is above its tolerance
  scripts/parity.py --only TEXT     what has TEXT in its name
  scripts/parity.py --quick         a part of each kind, for the tests
  scripts/parity.py --write         also puts the tables into docs/parity.md
  scripts/parity.py --device cuda   both sides on GPUs (one for each process)
"""

import argparse
import collections
import copy
import os
import pathlib
import shutil
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python"))
import parity_run  # noqa: E402
import parity_settings  # noqa: E402

WRONG = 1.01  # factor of the learning rate that a comparison must notice
PAGE = ROOT / "docs/parity.md"
MARK = "<!-- what follows is written by scripts/parity.py --write -->\n"


def with_wrong_lr(setting):
    changed = copy.deepcopy(setting)
    changed["train"]["lr"] *= WRONG
    return changed


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


def complaints(case, difference, wrong):
    """What is wrong with a measured case."""
    for part in case.compares:
        if part in difference and not difference[part] <= limit(case, part):
            yield f"{part} differs by {difference[part]:.2e} ({difference.get(part + ' of', '')}), allowed are {limit(case, part):.0e}"
    if wrong is not None and not wrong[shown(case)] > limit(case, shown(case)):
        yield f"a learning rate 1 % too high goes unnoticed: it changes the {shown(case)} by {wrong[shown(case)]:.2e}"


class Runner:
    """Runs cases and keeps what they gave."""

    def __init__(self, workshop):
        self.workshop, self.failed, self.rows = workshop, 0, []

    def run(self, cases):
        """All of ddprun's runs first, then the reference, one group of processes for each number of ranks."""
        groups = collections.defaultdict(list)
        for case in cases:
            if case.pieces:
                self.run_in_pieces(case)
                continue
            mine = self.workshop.ddprun(parity_run.defaults(case.setting), case.ranks)
            groups[case.peer_ranks or case.ranks].append((case, mine))
        for ranks, members in sorted(groups.items()):
            jobs = [parity_run.defaults(case.peer or case.setting) for case, _ in members]
            jobs += [with_wrong_lr(job) for job, (case, _) in zip(list(jobs), members) if case.wrong]
            results = self.workshop.reference(jobs, ranks)
            wrong = iter(results[len(members):])
            for (case, mine), peer in zip(members, results):
                self.judge(case, mine, peer, next(wrong) if case.wrong else None)

    def run_in_pieces(self, case):
        """One case alone: its checkpoints of every step are too large to keep until others are done."""
        mine = self.workshop.ddprun(parity_run.in_pieces(case.setting), case.ranks)
        job = {**parity_run.defaults(case.peer or case.setting), "checkpoints": str(mine["checkpoints"])}
        jobs = [job, with_wrong_lr(job)] if case.wrong else [job]
        peer, *wrong = self.workshop.reference(jobs, case.peer_ranks or case.ranks)
        shutil.rmtree(mine["checkpoints"])
        self.judge(case, mine, peer, wrong[0] if wrong else None)

    def judge(self, case, mine, peer, wrong):
        try:
            self.compare(case, mine, peer, wrong)
        except parity_run.ParityError as error:  # not comparable; the other cases are
            self.failed += 1
            print(f"FAILED: {case.name}: {error}", flush=True)

    def compare(self, case, mine, peer, wrong):
        difference = parity_run.compare(mine, peer)
        noticed = parity_run.compare(mine, wrong) if wrong is not None else None
        if case.setting["train"].get("evaluate"):
            test = self.workshop.samples(parity_run.defaults(case.setting), "test")
            difference["evaluation"] = parity_run.evaluation_difference(case.setting, mine, *test.at(0))
        found = list(complaints(case, difference, noticed))
        self.failed += len(found)
        self.rows.append((case, difference, noticed))
        numbers = ", ".join(f"{part} {difference[part]:.1e}" for part in case.compares if part in difference)
        print(f"{'FAILED' if found else 'ok'}: {case.name}: {numbers}" +
              (f"; wrong lr {noticed[shown(case)]:.1e}" if noticed else ""), flush=True)
        for line in found:
            print(f"  {line}", flush=True)


def table(rows):
    """Lines of Markdown."""
    yield "| setting | loss | weights | optimizer state | allowed: loss, weights | why | learning rate 1 % too high |"
    yield "|---|---|---|---|---|---|---|"
    for case, difference, noticed in rows:
        cells = [case.name.replace(" | ", ", ")]
        for part in ("loss", "update" if case.pieces else "weights", "optimizer"):
            cells.append(f"{difference[part]:.1e}" if part in difference and part in case.compares else "–")
        cells += [f"{case.tolerance.loss:.0e}, {limit(case, 'update' if case.pieces else 'weights'):.0e}", case.tolerance.reason,
                  f"{noticed[shown(case)]:.1e}" if noticed else "–"]
        yield "| " + " | ".join(cells) + " |"


def write_page(rows):
    text = PAGE.read_text(encoding="utf-8")
    head = text[:text.index(MARK) + len(MARK)]
    PAGE.write_text(head + "\n" + "\n".join(table(rows)) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ranks-max", type=int, default=1 << 20, help="leave out what needs more processes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device == "cuda":
        # Tensor cores would round inputs to 11 bits, in sums that depend on the size of the batch; ddprun inherits it, too.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    cases = [case for case in parity_settings.everything() if options.only in case.name and (case.quick or not options.quick)
             and max(case.ranks, case.peer_ranks or 1) <= options.ranks_max]
    with parity_run.Workshop(options.device) as workshop:
        runner = Runner(workshop)
        runner.run(cases)
    if options.write:
        write_page(runner.rows)
    print(f"{len(runner.rows)} comparisons, {runner.failed} complaints", flush=True)
    return 1 if runner.failed or not runner.rows else 0


if __name__ == "__main__":
    sys.exit(main())
