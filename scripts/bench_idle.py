"""What supervision costs while workers do nothing: wake-ups a second (voluntary context switches) and processor time, in
percent of one core, of all threads of ddprun and its keeper over 20 s."""

import os
import signal
import sys

from bench_report import print_row
from job_run import Job, JobError, descendants

SETTLE_SECONDS = 2
MEASURE_SECONDS = 20
WORKERS = 4


def look(pid):
    """(voluntary context switches, nanoseconds on a processor), summed over the threads of a process."""
    switches = nanoseconds = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="utf-8") as file:
            switches += next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="utf-8") as file:
            nanoseconds += int(file.read().split()[0])
    return switches, nanoseconds


def main():
    arguments = ["--nproc", str(WORKERS), "--", "sleep", "60"]
    with Job(arguments, timeout_seconds=90) as job:
        for rank in range(WORKERS):
            job.wait_event("worker_started", rank=rank)
        job.wait_moment(SETTLE_SECONDS)
        keepers = [pid for pid, (_, name) in descendants(job.process.pid).items() if name == "ddprun-keeper"]
        if len(keepers) != 1:
            raise JobError(f"expected one ddprun-keeper, found {len(keepers)}")
        watched = {"ddprun": job.process.pid, "ddprun-keeper": keepers[0]}
        before = {name: look(pid) for name, pid in watched.items()}
        job.wait_moment(MEASURE_SECONDS)
        after = {name: look(pid) for name, pid in watched.items()}
        job.process.send_signal(signal.SIGTERM)
        job.wait_end()
    rates = {name: (after[name][0] - before[name][0]) / MEASURE_SECONDS for name in watched}
    percent = sum(after[name][1] - before[name][1] for name in watched) / 1e9 / MEASURE_SECONDS * 100
    print_row(["build/bin/ddprun", *arguments], "–",
              ", ".join(f"{name} {rate:.1f} wake-ups/s" for name, rate in rates.items()) +
              f"; {percent:.3f} % of one core", "–")
    return 0


sys.exit(main())
