"""What the tests of several nodes have in common."""

import time
import unittest

from lab import Lab, require, wait_until
from nodes_job import NodesJob

WAIT = ["--", "sleep", "1000"]                      # a program that waits
# The same, with what ddprun adds to its environment in the log.
TELL = ["--", "sh", "-c", "env | grep -E '^(RANK|WORLD|LOCAL|GROUP|MASTER|DDPRUN|TORCHELASTIC|PADDLE|MARK)'; exec sleep 1000"]


class ClusterCase(unittest.TestCase):
    """Makes labs and jobs that end with the test; skipped where nodes cannot be made."""

    def setUp(self):
        require()

    def lab(self, names, **options):
        lab = Lab(names, **options)
        self.addCleanup(lab.close)
        return lab

    def job(self, lab, job, nnodes, **options):
        return NodesJob(lab, job, nnodes, **options)

    def environments(self, job, generation, count):
        """Waits until the workers of TELL have printed their environment; returns {rank: {name: value}}."""
        def read():
            logs = {rank: job.log(generation, rank) for rank in range(count)}
            if not all("WORLD_SIZE=" in text and text.endswith("\n") for text in logs.values()):
                return None
            return {rank: dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for rank, text in logs.items()}
        return wait_until(read, 10, "environments of the workers")

    def wait_gone(self, lab, names, name, seconds, what):
        """Waits until no process of this name runs on these nodes; returns the seconds it took."""
        start = time.monotonic()
        wait_until(lambda: not any(lab[node].pids_of(name) for node in names), seconds, what)
        return time.monotonic() - start

    def stop(self, job, members_too=True):
        """Ends a job as Ctrl-C does, and checks that nothing is left on any node."""
        job.host_process.signal(2)
        job.host_process.wait(20)
        if members_too:
            for process in job.members.values():
                if not process.node.dead:
                    process.wait(20)
        self.assert_nothing_left(job.lab)

    def assert_nothing_left(self, lab, seconds=5):
        wait_until(lambda: not lab.processes(), seconds, f"end of every process; left are {lab.processes()}")
