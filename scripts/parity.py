"""Trains the same settings with ddprun and with PyTorch, in the same run, and says how far apart they are: see docs/parity.md.

  scripts/parity.py                 everything (about an hour on 2 cores); exit code 1 when a difference is above its tolerance
  scripts/parity.py --jobs N        N cases at the same time; what is printed and written is the same, progress is on stderr
  scripts/parity.py --only TEXT     what has TEXT in its name
  scripts/parity.py --quick         a part of each kind, for the tests
  scripts/parity.py --write [FILE]  also puts the table into docs/parity.md, or a page like it into FILE
  scripts/parity.py --device cuda   both sides on GPUs (one for each process)

Needs ddprun, ddprun-keeper and ddp-worker in DDPRUN_BIN (build/bin), Python with torch, numpy and safetensors, and xxhash or libxxhash.
"""

import argparse
import importlib.util
import os
import pathlib
import platform
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python"))
import parity_settings  # noqa: E402
import parity_work  # noqa: E402

PAGE = ROOT / "docs/parity.md"
MARK = "<!-- what follows is written by scripts/parity.py --write -->\n"


def environment(device):
    """What both sides ran with, in a sentence."""
    computer = torch.cuda.get_device_name() if device == "cuda" else processor()
    if importlib.util.find_spec("torchvision"):
        import torchvision
        resnets = f"torchvision {torchvision.__version__} makes and checks the files of ResNets' weights"
    else:
        resnets = "torchvision is not installed: reference_models.py makes and checks the files of ResNets' weights too"
    return f"Python {platform.python_version()}, PyTorch {torch.__version__}, on {computer}; {resnets}."


def processor():
    """Its name."""
    names = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
             if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(outcomes):
    """Lines of Markdown."""
    yield "| setting | loss | weights | optimizer state | allowed: loss, weights | why | learning rate 1 % too high |"
    yield "|---|---|---|---|---|---|---|"
    for outcome in outcomes:
        case, difference = outcome.case, outcome.difference
        cells = [("**not within:** " if outcome.complaints else "") + case.name.replace(" | ", ", ")]
        for part in ("loss", "update" if case.pieces else "weights", "optimizer"):
            cells.append(f"{difference[part]:.1e}" if part in difference and part in case.compares else "–")
        cells += [f"{case.tolerance.loss:.0e}, {parity_work.limit(case, 'update' if case.pieces else 'weights'):.0e}", case.tolerance.reason,
                  f"{outcome.noticed[parity_work.shown(case)]:.1e}" if outcome.noticed else "–"]
        yield "| " + " | ".join(cells) + " |"


def write_page(path, outcomes, device):
    text = PAGE.read_text(encoding="utf-8")
    head = text[:text.index(MARK) + len(MARK)]
    bad = sum(bool(outcome.complaints) for outcome in outcomes)
    verdict = f"{len(outcomes)} comparisons, " + (f"{bad} not within the tolerance." if bad else "all within the tolerance.")
    path.write_text(f"{head}\n{environment(device)} {verdict}\n\n" + "\n".join(table(outcomes)) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", nargs="?", type=pathlib.Path, const=PAGE)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ranks-max", type=int, default=1 << 20, help="leave out what needs more processes")
    options = parser.parse_args()
    if options.device == "cuda":
        # Tensor cores would round inputs to 11 bits, in sums that depend on the size of the batch; ddprun inherits it, too.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    cases = [case for case in parity_settings.everything() if options.only in case.name and (case.quick or not options.quick)
             and max(case.ranks, case.peer_ranks or 1) <= options.ranks_max]
    outcomes = []
    for outcome in parity_work.run_all(cases, options.device, options.jobs):
        outcomes.append(outcome)
        print("\n".join(outcome.lines()), flush=True)
    if options.write:
        write_page(options.write, outcomes, options.device)
    failed = sum(len(outcome.complaints) for outcome in outcomes)
    print(f"{len(outcomes)} comparisons, {failed} complaints", flush=True)
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
