"""Start and end of 8 processes that do nothing: ddprun, torchrun and Open MPI's mpirun, alternating in one run."""

import os
import shutil
import signal
import subprocess
import tempfile
import time

from bench_report import Sample, pins, print_row, version
from job_run import DDPRUN, ROOT

PROCESSES = 8
ROUNDS = 20
TORCHRUN_ROUNDS = 5
LIMIT_SECONDS = 60
TORCHRUN = [str(ROOT / ".deps/venv/bin/python"), "-m", "torch.distributed.run", "--standalone",
            "--nproc_per_node", str(PROCESSES), "--no-python", "/bin/true"]
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-np", str(PROCESSES), "/bin/true"]


def seconds_of(command):
    """Runs the command once, output thrown away; a failure ends the benchmark.

    An alarm is the bound, since subprocess's own timeout polls, which is coarser than what is measured."""
    signal.alarm(LIMIT_SECONDS)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took = time.perf_counter() - start
    signal.alarm(0)
    return took


def main():
    folder = tempfile.mkdtemp(prefix="ddprun-bench-")
    ours_command = [DDPRUN, "--nproc", str(PROCESSES), "--run-dir", os.path.join(folder, "run"), "--", "/bin/true"]
    ours, torchrun, mpirun = [], [], []
    try:
        for turn in range(-1, ROUNDS):  # turn −1 warms the page cache and is not counted
            for command, values, rounds in ((ours_command, ours, ROUNDS), (MPIRUN, mpirun, ROUNDS),
                                            (TORCHRUN, torchrun, TORCHRUN_ROUNDS)):
                if turn < rounds:
                    took = seconds_of(command)
                    if turn >= 0:
                        values.append(took)
                shutil.rmtree(os.path.join(folder, "run"), ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    mine = Sample(ours)
    shown = f"build/bin/ddprun --nproc {PROCESSES} --run-dir … -- /bin/true"
    for name, sample, versions in (
            ("torchrun --standalone --no-python", Sample(torchrun), f"torch {pins()['TORCH_VERSION']}"),
            ("mpirun --oversubscribe", Sample(mpirun), version(["mpirun", "--version"]))):
        print_row(shown, f"{name}: {sample.text()}", mine.text(), f"1/{sample.median / mine.median:.1f}", versions)


main()
