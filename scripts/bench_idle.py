"""Wake-ups a second of an idle ddprun and its keeper: voluntary context switches of all their threads over 10 s."""

import os
import signal
import sys

from bench_report import print_row
from job_run import Job, JobError, descendants

SETTLE_SECONDS = 2
MEASURE_SECONDS = 10


def voluntary_switches(pid):
    """Sum over the threads of a process."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="utf-8") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    return total


def main():
    arguments = ["--nproc", "1", "--", "sleep", "30"]
    with Job(arguments, timeout_seconds=60) as job:
        job.wait_event("worker_started")
        job.wait_moment(SETTLE_SECONDS)
        keepers = [pid for pid, (_, name) in descendants(job.process.pid).items() if name == "ddprun-keeper"]
        if len(keepers) != 1:
            raise JobError(f"expected one ddprun-keeper, found {len(keepers)}")
        watched = {"ddprun": job.process.pid, "ddprun-keeper": keepers[0]}
        before = {name: voluntary_switches(pid) for name, pid in watched.items()}
        job.wait_moment(MEASURE_SECONDS)
        rates = {name: (voluntary_switches(pid) - before[name]) / MEASURE_SECONDS for name, pid in watched.items()}
        job.process.send_signal(signal.SIGTERM)
        job.wait_end()
    print_row(["build/bin/ddprun", *arguments], "–",
              ", ".join(f"{name} {rate:.1f}/s" for name, rate in rates.items()) + f"; sum {sum(rates.values()):.1f}/s",
              "–")
    return 0


sys.exit(main())
