#!/usr/bin/env python3
"""Who is a member of a job: coming in any order, leaving, returning, spares, deadlines, over several nodes.
Rows L3 L35 L39 L41 R3 R6 R7 R8 S16 S22."""

import random
import signal
import time
import unittest

from cluster_case import TELL, WAIT, ClusterCase
from lab import wait_until
from nodes_job import built_for_tests

TRAINER = ["--", built_for_tests("fault_worker"), "100000000", "10000"]  # saves checkpoints, in worlds of any size


def nodes_of(started):
    return sorted(set(started["nodes"]))


class MembershipTest(ClusterCase):
    def start(self, names, nnodes, job=WAIT, members=None, way="apart", **options):
        lab = self.lab(names)
        job = self.job(lab, job, nnodes, way=way, **options).start(members or names)
        job.wait_workers(1)
        return lab, job

    def test_l41_coordinator_may_start_last(self):
        lab = self.lab("ab")
        job = self.job(lab, WAIT, 2, way="apart")
        for name in "ab":
            job.join(name)
            job.members[name].wait_output("a", 5)  # it has said something
        wait_until(lambda: "try" in job.members["b"].output() or "trying" in job.members["b"].output(), 10, "word of a retry")
        job.host()
        job.wait_workers(1, seconds=20)
        self.stop(job)

    def test_l35_leaving_is_per_node_and_rejoining_works_ten_times(self):
        lab, job = self.start("ab", "1:2", TRAINER)
        for _ in range(10):
            last = job.events[-1]
            job.members["b"].signal(signal.SIGTERM)
            self.assertIn(job.members["b"].wait(15), (0, 128 + signal.SIGTERM))
            job.wait_event("generation_started", after=last, world_size=1)
            last = job.events[-1]
            job.join("b")
            job.wait_event("generation_started", after=last, world_size=2)
        job.read_events()
        self.assertFalse([event for event in job.events if event["event"] == "restart_scheduled" and not event.get("free")])
        self.stop(job)

    def test_r6_l3_leaving_saves_a_checkpoint_first_and_the_others_go_on_from_it(self):
        lab, job = self.start("abc", "2:3", TRAINER)
        job.wait_event("training_progressed")
        job.members["c"].signal(signal.SIGTERM)
        started = job.wait_event("generation_started", generation=2, world_size=2)
        self.assertGreater(started["resume_step"], 0)
        self.assertEqual(nodes_of(started), ["a", "b"])
        committed = [event["step"] for event in job.events if event["event"] == "checkpoint_committed"]
        self.assertEqual(started["resume_step"], committed[-1])
        self.assertTrue(job.wait_event("restart_scheduled", generation=1)["free"])
        job.members["c"].wait(10)
        self.assertEqual(lab["c"].processes(), {})
        self.stop(job)

    def test_l3_growth_saves_a_checkpoint_first_and_costs_nothing(self):
        lab, job = self.start("abc", "2:3", TRAINER, members="ab", options=["--join-timeout", "60"])
        job.wait_event("training_progressed")
        job.join("c")
        started = job.wait_event("generation_started", generation=2, world_size=3)
        self.assertGreater(started["resume_step"], 0)
        self.assertTrue(job.wait_event("restart_scheduled", generation=1)["free"])
        self.stop(job)

    def test_lost_node_is_replaced_by_a_spare_and_the_others_keep_their_ranks(self):
        lab, job = self.start("abcd", 3, TRAINER, members="abc")
        job.join("d")
        self.assertTrue(job.wait_event("node_joined", node="d").get("spare"))
        before = {event["node"]: rank for rank, event in job.workers(1).items()}
        lost = next(node for node in "bc" if before[node] != 2)
        lab[lost].power_off()
        after = {event["node"]: rank for rank, event in job.wait_workers(2).items()}
        self.assertEqual(after.pop("d"), before[lost])
        self.assertEqual(after, {node: rank for node, rank in before.items() if node != lost})
        self.stop(job)

    def test_lost_node_without_a_spare_is_waited_for_where_the_policy_says_so(self):
        lab, job = self.start("abc", "2:3", TRAINER, options=["--on-node-loss", "wait"])
        lab["c"].power_off()
        ended = job.wait_event("generation_ended", generation=1)
        lab.power_on("c")
        job.join("c")
        started = job.wait_event("generation_started", after=ended)
        self.assertEqual(started["world_size"], 3)
        self.stop(job)

    def test_r7_ranks_stay_with_their_nodes_over_restarts(self):
        lab, job = self.start("abcd", 4)
        first = {event["node"]: rank for rank, event in job.workers(1).items()}
        for generation in (1, 2):
            node = "bd"[generation - 1]
            lab[node].signal(job.workers(generation)[first[node]]["pid"], signal.SIGKILL)
            workers = job.wait_workers(generation + 1)
            self.assertEqual({event["node"]: rank for rank, event in workers.items()}, first)
        self.stop(job)

    def test_r8_surplus_nodes_are_spares_in_every_round(self):
        lab, job = self.start("abcde", 3, TRAINER, members="abc")
        job.join("d")
        job.wait_event("node_joined", node="d")
        rank = next(rank for rank, event in job.workers(1).items() if event["node"] == "b")
        lab["b"].signal(job.workers(1)[rank]["pid"], signal.SIGKILL)
        job.join("e")  # while generation 1 ends or 2 begins
        job.wait_workers(2)
        job.wait_event("node_joined", node="e")
        self.assertEqual(nodes_of(job.find("generation_started", generation=2)), ["a", "b", "c"])
        job.members["c"].signal(signal.SIGKILL)
        started = job.wait_event("generation_started", generation=3)
        self.assertEqual(len(nodes_of(started)), 3)
        self.assertNotIn("c", started["nodes"])
        self.stop(job)

    def test_r3_any_order_of_leaving_and_returning_ends_in_a_running_job(self):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {seed}", flush=True)
        chooser = random.Random(seed)
        lab, job = self.start("abc", "1:3", TRAINER, options=["--max-restarts", "100"])
        for _ in range(12):
            name = chooser.choice("bc")
            process = job.members[name]
            if process.poll() is None:
                process.signal(chooser.choice([signal.SIGKILL, signal.SIGTERM]))
                if chooser.random() < 0.5:
                    process.wait(15)
            else:
                job.join(name)
            end = time.monotonic() + chooser.uniform(0, 1)
            wait_until(lambda end=end: time.monotonic() > end or job.host_process.poll() is not None, 2, "a moment")
        for name in "bc":
            if job.members[name].poll() is None:
                job.members[name].signal(signal.SIGKILL)
                job.members[name].wait(5)
            job.join(name)
        wait_until(lambda: job.read_events() or len(lab["b"].pids_of("fault_worker")) == len(lab["c"].pids_of("fault_worker")) == 1 ==
                   len(lab["a"].pids_of("fault_worker")), 30, "workers on all nodes")
        self.stop(job)

    def test_l39_s16_missing_node_is_named_and_the_join_deadline_ends_the_job(self):
        lab = self.lab("abc")
        job = self.job(lab, WAIT, 3, way="apart", options=["--join-timeout", "3"])
        job.start("ab")
        output = job.host_process.wait_output("2 of 3", 10)
        self.assertIn("b", output)
        self.assertEqual(job.host_process.wait(15), 3)
        self.assertEqual(job.wait_end()[1]["failure_kind"], "nodes_missing")
        for process in job.members.values():
            self.assertEqual(process.wait(15), 3)
        self.assert_nothing_left(lab)

    def test_s16_node_with_another_job_id_is_refused_and_the_job_goes_on(self):
        lab, job = self.start("abc", 2, members="ab")
        stranger = job.join("c", extra=["--job-id", "another"])
        self.assertEqual(stranger.wait(15), 2)
        self.assertIn("another", stranger.output())
        refused = job.wait_event("join_refused")
        self.assertIn(lab["c"].ipv4, refused["peer"])  # what a stranger calls itself is nothing to go by
        self.assertIsNone(job.find("generation_ended"))
        del job.members["c"]
        self.stop(job)

    def test_s22_uneven_numbers_of_workers(self):
        lab = self.lab("ab")
        job = self.job(lab, TELL, 2, way="apart").start(nproc={"a": 2, "b": 3})
        workers = job.wait_workers(1)
        self.assertEqual(sorted(workers), [0, 1, 2, 3, 4])
        environments = self.environments(job, 1, 5)
        for rank, event in workers.items():
            values = environments[rank]
            self.assertEqual(values["LOCAL_WORLD_SIZE"], {"a": "2", "b": "3"}[event["node"]])
            self.assertEqual((values["RANK"], values["WORLD_SIZE"]), (str(rank), "5"))
            self.assertEqual(values["LOCAL_RANK"], str(event["local_rank"]))
            self.assertNotIn("DDPRUN_SECRET", values)
        self.stop(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
