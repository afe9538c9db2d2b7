"""Part of the training loop's time that is spent inside checkpoint calls: reference job, a checkpoint every 10 steps."""

import argparse
import sys

from bench_report import print_row
from job_run import REFERENCE_CONFIG, Job

LOOP_SECONDS_MIN = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=16)
    options = parser.parse_args()
    arguments = ["--nproc", "4", "--set", "checkpoint.every_steps=10", "--set", f"train.epochs={options.epochs}",
                 REFERENCE_CONFIG]
    with Job(arguments, timeout_seconds=600) as job:
        code, result = job.wait_end()
        committed = sum(event["event"] == "checkpoint_committed" for event in job.events)
        skipped = sum(event["event"] == "checkpoint_skipped" for event in job.events)
    if code != 0:
        print(f"the job ended with {code}: {result}", file=sys.stderr)
        return 1
    inside, loop = float(result["metrics"]["checkpoint_seconds"]), float(result["metrics"]["loop_seconds"])
    if loop < LOOP_SECONDS_MIN:
        print(f"the loop took {loop:.1f} s; the figure asks for {LOOP_SECONDS_MIN} s: raise --epochs", file=sys.stderr)
        return 1
    print_row(["build/bin/ddprun", *arguments], "–",
              f"{100 * inside / loop:.2f} % ({inside:.3f} s of {loop:.1f} s; {committed} committed, {skipped} skipped)",
              "–")
    return 0


sys.exit(main())
