"""Wall time of the simulator over 10,000 seeds. A failing seed fails the benchmark."""

import argparse
import subprocess
import sys
import time

from bench_report import print_row
from job_run import BIN

LIMIT_SECONDS = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1..10000")
    options = parser.parse_args()
    start = time.perf_counter()
    done = subprocess.run([str(BIN / "ddprun-sim"), "--seeds", options.seeds], timeout=LIMIT_SECONDS, check=False,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    took = time.perf_counter() - start
    if done.returncode != 0:
        print(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\nddprun-sim ended with {done.returncode}", file=sys.stderr)
        return 1
    last = done.stdout.strip().split("\n")[-1]
    print_row(f"build/bin/ddprun-sim --seeds {options.seeds}", "–", f"{took:.1f} s; it says: {last}", "–")
    return 0


sys.exit(main())
