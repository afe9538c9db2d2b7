#!/usr/bin/env python3
"""Workers and nodes that fail, freeze, vanish and come back, over several nodes.
Rows L27 L28 L34 L37 L44 R1 R2 R4 D1 S10."""

import os
import signal
import sys
import time
import unittest

from cluster_case import TELL, WAIT, ClusterCase
from lab import state_of, wait_until
from nodes_job import LEASE_SECONDS, built_for_tests

# A node is replaced when nothing was heard for its lease + 1 s; what is added is this machine's, when it is busy.
NOTICED_SECONDS = LEASE_SECONDS + 1 + 2.0
TRAINER = ["--", built_for_tests("fault_worker"), "100000000", "10000"]  # saves checkpoints, in worlds of any size


class LossTest(ClusterCase):
    def start(self, names, nnodes, job=WAIT, network="bridge", **options):
        lab = self.lab(names, network=network)
        job = self.job(lab, job, nnodes, way="apart", **options).start()
        job.wait_workers(1)
        return lab, job

    def test_l28_failure_on_one_node_ends_the_workers_of_the_other_within_two_seconds(self):
        lab, job = self.start("ab", 2)
        rank = next(rank for rank, event in job.workers(1).items() if event["node"] == "b")
        before = lab["a"].pids_of("sleep")
        self.assertEqual(len(before), 1)
        lab["b"].signal(job.workers(1)[rank]["pid"], signal.SIGKILL)
        start = time.monotonic()
        wait_until(lambda: before[0] not in lab["a"].pids_of("sleep"), 2, "end of the worker on node a")
        self.assertLess(time.monotonic() - start, 2)
        job.wait_workers(2)
        self.assertEqual(job.find("generation_ended", generation=1)["rank"], rank)
        self.stop(job)

    def test_l27_l44_workers_that_ignore_sigterm_are_gone_everywhere_after_the_grace(self):
        stubborn = ["--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
        lab, job = self.start("abc", 3, stubborn, options=["--grace", "1"])
        event = next(event for event in job.workers(1).values() if event["node"] == "c")
        old = {pid for name in "ab" for pid in lab[name].processes().items() if pid[1][1] == "sh"}
        lab["c"].signal(event["pid"], signal.SIGKILL)
        ended = job.wait_event("generation_ended", generation=1, seconds=1 + 5)
        self.assertEqual(ended["rank"], event["rank"])
        self.assertEqual({entry for entry in old if state_of(entry[0]) not in "XZ"}, set())
        job.host_process.signal(signal.SIGTERM)
        job.host_process.signal(signal.SIGTERM)
        job.host_process.wait(20)

    def test_l34_r4_killed_agent_leads_to_a_new_world_of_the_others(self):
        lab, job = self.start("abc", "2:3")
        job.members["c"].signal(signal.SIGKILL)
        start = time.monotonic()
        started = job.wait_event("generation_started", generation=2, seconds=NOTICED_SECONDS)
        self.assertLess(time.monotonic() - start, NOTICED_SECONDS)
        self.assertEqual(started["world_size"], 2)
        self.assertEqual(sorted(started["nodes"]), ["a", "b"])
        self.assertEqual(lab["c"].pids_of("sleep"), [])
        self.stop(job)

    def test_l34_cut_link_leads_to_a_new_world_and_the_old_workers_are_gone_before(self):
        lab, job = self.start("abc", "2:3", TRAINER, network="switch")
        lab.cut("c")
        job.wait_workers(2, seconds=NOTICED_SECONDS)
        self.assertEqual(lab["c"].pids_of("fault_worker"), [])  # its lease ended them, before the others began
        self.assertEqual(job.find("generation_started", generation=2)["world_size"], 2)
        lab.heal("c")
        job.wait_event("generation_started", generation=3, seconds=20, world_size=3)
        self.stop(job)

    def test_l19_agents_notice_a_coordinator_that_vanished_without_a_word(self):
        """Its connection stands, as far as this machine's kernel knows, for a quarter of an hour."""
        lab, job = self.start("ab", 2, network="switch")
        lab.cut("a")
        job.members["b"].wait_output("trying to find the coordinator again", 30)
        self.assertEqual(lab["b"].pids_of("sleep"), [])  # its lease ended them
        lab.heal("a")
        job.members["b"].wait_output("the coordinator is found again", 20)
        self.stop(job)

    def test_s10_stopped_agent_is_replaced_and_fenced_when_it_goes_on(self):
        lab, job = self.start("abc", "2:3", TRAINER)
        job.members["c"].signal(signal.SIGSTOP)
        job.wait_workers(2, seconds=NOTICED_SECONDS)
        self.assertEqual(lab["c"].pids_of("fault_worker"), [])
        job.members["c"].signal(signal.SIGCONT)
        job.wait_event("generation_started", generation=3, seconds=20, world_size=3)  # it comes back as a node like any other
        self.stop(job)

    def test_s10_frozen_machine_finds_its_workers_dead_when_it_wakes(self):
        lab, job = self.start("abc", "2:3", TRAINER)
        old = lab["c"].pids_of("fault_worker")
        lab["c"].freeze()
        job.wait_workers(2, seconds=NOTICED_SECONDS)
        lab["c"].thaw()
        wait_until(lambda: not set(old) & set(lab["c"].pids_of("fault_worker")), 2, "end of the workers of the woken node")
        job.wait_event("generation_started", generation=3, seconds=20, world_size=3)
        self.stop(job)

    def test_l37_returning_node_never_has_a_world_of_its_own(self):
        lab, job = self.start("ab", "1:2", TRAINER, network="switch")
        lab["b"].power_off()
        job.wait_event("generation_started", generation=2, seconds=NOTICED_SECONDS, world_size=1)
        lab.power_on("b")
        job.join("b")
        joined = job.wait_event("generation_started", generation=3, seconds=20, world_size=2)
        self.assertEqual(sorted(joined["nodes"]), ["a", "b"])
        job.wait_workers(3)
        self.assertEqual(len(lab["a"].pids_of("fault_worker")), 1)
        self.assertEqual(len(lab["b"].pids_of("fault_worker")), 1)
        self.stop(job)

    def test_r1_all_ranks_have_the_same_generation_after_one_agent_restarted(self):
        lab, job = self.start("abc", 3, TELL)
        job.members["b"].signal(signal.SIGKILL)
        job.members["b"].wait(5)
        job.join("b")
        job.wait_workers(2, seconds=20)
        environments = self.environments(job, 2, 3)
        for name in ("DDPRUN_GENERATION", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
            self.assertEqual(len({values[name] for values in environments.values()}), 1, name)
        self.assertEqual(environments[0]["DDPRUN_GENERATION"], "2")
        self.stop(job)

    def test_r2_one_budget_for_failures_that_alternate_between_nodes(self):
        lab, job = self.start("ab", 2, options=["--max-restarts", "3"])
        for generation in range(1, 5):
            node = "ab"[generation % 2]
            workers = job.wait_workers(generation)
            event = next(event for event in workers.values() if event["node"] == node)
            lab[node].signal(event["pid"], signal.SIGKILL)
            job_over = generation == 4
            if not job_over:
                job.wait_event("generation_ended", generation=generation)
        code, result = job.wait_end(20)
        self.assertEqual((code, result["generations"], result["restarts"]), (137, 4, 3))
        for process in job.members.values():
            self.assertEqual(process.wait(10), 137)
        self.assert_nothing_left(lab)

    def test_d1_lost_peer_is_known_though_the_worker_itself_waits_for_ever(self):
        listener = ["--", sys.executable, "-c", "import socket; s = socket.create_server(('', 0)); s.accept()"]
        lab, job = self.start("ab", 2, listener)
        event = next(event for event in job.workers(1).values() if event["node"] == "b")
        lab["b"].signal(event["pid"], signal.SIGKILL)
        job.wait_workers(2, seconds=5)
        self.stop(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
