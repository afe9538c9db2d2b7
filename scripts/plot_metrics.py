"""Draws learning curves of one run or more: plot_metrics.py RUN… -o FILE.svg [--title TEXT].

RUN is a run folder: its metrics.jsonl gives the training loss, evaluations.jsonl the test loss and accuracy. Of a step that was
done again after a restart the last line counts. Needs matplotlib.
"""

import argparse
import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "ddprun"  # the same data give the same file
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)


def read(path):
    """Step → fields of the newest line."""
    steps = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            sys.exit(f"{path}:{number}: not JSON: {error}")
        steps[fields["step"]] = fields
    return steps


def curve(axis, lines, key, label, style):
    points = [(step, fields[key]) for step, fields in sorted(lines.items()) if fields.get(key) is not None]
    if points:
        axis.plot(*zip(*points), style, label=label, linewidth=1.2, markersize=4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--title", default="")
    options = parser.parse_args()
    figure, loss = plt.subplots(figsize=(7, 3.6))
    accuracy = None
    for run in options.runs:
        training = read(pathlib.Path(run) / "metrics.jsonl")
        if not training:
            sys.exit(f"{run}: has no line of training")
        evaluations = read(pathlib.Path(run) / "evaluations.jsonl")
        curve(loss, training, "loss", "training loss", "-")
        curve(loss, evaluations, "test_loss", "test loss", "o--")
        if any(fields.get("test_accuracy") is not None for fields in evaluations.values()):
            accuracy = accuracy or loss.twinx()
            curve(accuracy, evaluations, "test_accuracy", "test accuracy", "s-g")
    loss.set_xlabel("step")
    loss.set_ylabel("loss")
    loss.set_ylim(bottom=0)
    handles, labels = loss.get_legend_handles_labels()
    if accuracy is not None:
        accuracy.set_ylabel("test accuracy")
        accuracy.set_ylim(0, 1)
        more = accuracy.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    loss.legend(handles, labels, loc="center right", fontsize=8)
    loss.set_title(options.title, fontsize=10)
    figure.tight_layout()
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
