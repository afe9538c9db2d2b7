#!/usr/bin/env python3
"""The built-in trainer over two nodes, started in both ways. Rows L3 L28 L34 S10 with real communication."""

import json
import os
import pathlib
import signal
import unittest

from cluster_case import ClusterCase
from nodes_job import NodesJob
from lab import DDPRUN, ROOT

SETTINGS = ["--set", "train.steps=60", "--set", "train.evaluate=false", "--set", "data.batch_size=8", "--set", "data.workers=1",
            "--set", "checkpoint.every_steps=10"]
JOB = [str(ROOT / "examples" / "fashion_mnist.cfg")]
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


class TrainingTest(ClusterCase):
    def setUp(self):
        super().setUp()
        if not os.access(pathlib.Path(DDPRUN).parent / "ddp-worker", os.X_OK):
            self.skipTest("needs ddp-worker, which is not built")

    def run_job(self, lab, nnodes, way, nproc=1, run="run", **options):
        return NodesJob(lab, JOB, nnodes, way=way, nproc=nproc, options=SETTINGS, env=ENVIRONMENT, run_dir=lab.shared / run,
                        **options)

    def test_two_nodes_give_the_weights_of_one_in_both_ways(self):
        lab = self.lab("ab")
        code, output = lab["a"].run([DDPRUN, "--nproc", "2", "--run-dir", lab.shared / "alone", *SETTINGS, *JOB], seconds=60,
                                    env=ENVIRONMENT)
        self.assertEqual(code, 0, output)
        digests = {line.split()[-1] for line in output.splitlines() if "weights digest" in line}
        for way in ("together", "apart"):
            with self.subTest(way):
                job = self.run_job(lab, 2, way, run=way).start()
                code, result = job.wait_end()
                self.assertEqual(code, 0, job.told())
                self.assertEqual({result["weights_digest"]}, digests)
                for process in job.members.values():
                    self.assertEqual(process.wait(10), 0)
                self.assert_nothing_left(lab)

    def test_killed_worker_and_lost_node_leave_the_weights_as_they_are(self):
        lab = self.lab("abc", network="switch")
        for name in "abc":
            lab.links_of(name, delay_seconds=0.002)
        digests = []
        for fault in (None, "worker", "node"):
            job = self.run_job(lab, 2, "together", run=f"run-{fault}").start("ab")
            if fault:
                job.wait_event("checkpoint_committed")
            if fault == "worker":
                workers = job.wait_workers(1)
                lab["b"].signal(next(e["pid"] for e in workers.values() if e["node"] == "b"), signal.SIGKILL)
            elif fault == "node":
                job.join("c")
                job.wait_event("node_joined", node="c")
                lab["b"].power_off()
            code, result = job.wait_end()
            self.assertEqual(code, 0, job.told())
            digests.append(result["weights_digest"])
            for process in job.members.values():
                self.assertIsNotNone(process.wait(10))
            self.assert_nothing_left(lab)
        self.assertEqual(len(set(digests)), 1, digests)

    def test_l3_growth_and_leaving_repeat_no_step_and_cost_nothing(self):
        lab = self.lab("abc")
        settings = [*SETTINGS, "--set", "train.steps=100000", "--set", "checkpoint.every_steps=1000000", "--set", "log.every_steps=1"]
        job = NodesJob(lab, JOB, "2:3", way="together", nproc=1, options=settings, env=ENVIRONMENT, run_dir=lab.shared / "run")
        job.start("ab")
        job.wait_event("training_progressed", generation=1)
        job.join("c")
        self.check_resize(job, generation=2, world_size=3)
        job.members["c"].signal(signal.SIGTERM)
        self.check_resize(job, generation=3, world_size=2)
        self.assertEqual(job.members["c"].wait(20), 143)
        self.stop(job)
        steps = [json.loads(line)["step"] for line in (lab.shared / "run" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(steps, list(range(1, steps[-1] + 1)))
        result = json.loads((lab.shared / "run" / "result.json").read_text())
        self.assertEqual((result["restarts"], result["time_lost_s"], result["final_step"]), (0, 0, steps[-1]))

    def check_resize(self, job, generation, world_size):
        """The next generation goes on from a checkpoint of the last step, free of charge, and says that results will differ."""
        started = job.wait_event("generation_started", generation=generation, world_size=world_size)
        self.assertTrue(job.wait_event("restart_scheduled", generation=generation - 1)["free"])
        first = job.wait_event("training_progressed", generation=generation)
        self.assertEqual(first["step"], started["resume_step"] + 1)
        self.assertNotIn("time_lost_s", first)
        committed = [event["step"] for event in job.events if event["event"] == "checkpoint_committed"]
        self.assertEqual(started["resume_step"], committed[-1])
        self.assertIn("not be bit-identical", job.log(generation, 0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
