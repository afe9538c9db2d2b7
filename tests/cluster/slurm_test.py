#!/usr/bin/env python3
"""ddprun under a real Slurm: one controller and three slurmd, each node with a network of its own (slurm_lab.py)."""

import json
import os
import pathlib
import subprocess
import unittest

from lab import DDPRUN, wait_until
from slurm_lab import SlurmLab, require_slurm

SECONDS = 40  # for whatever happens within a second on an idle machine
REPORT = 'echo "rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME"'

# Counts SIGUSR2; SIGTERM ends it after it has written what it would save. Says when it is ready for signals.
PATIENT = """#!/bin/bash
asked=0; ended=0
trap 'asked=$((asked + 1)); echo "rank $RANK asked $asked"' USR2
trap 'ended=1' TERM
echo "rank $RANK is ready, restart ${SLURM_RESTART_COUNT:-0}"
if [ -e "$PWD/finish" ]; then exit 0; fi
while [ $ended = 0 ]; do sleep 1000 & wait $!; kill $!; done 2>/dev/null
echo "rank $RANK has saved"
exit 0
"""


def srun(nodes, *words):
    return ["srun", f"-N{nodes}", "-l", DDPRUN, *words]


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_slurm()
        cls.slurm = SlurmLab(3)
        cls.addClassCleanup(cls.slurm.lab.close)
        cls.program = cls.slurm.lab.shared / "patient.sh"
        cls.program.write_text(PATIENT, encoding="ascii")
        cls.program.chmod(0o755)

    def setUp(self):
        # Each test has a working folder of its own.
        self.slurm.jobs = self.slurm.lab.shared / self.id().rsplit(".", 1)[1]
        self.slurm.jobs.mkdir()

    def tearDown(self):
        self.slurm.run(["scancel", "--full", "--user=root"])
        wait_until(lambda: self.slurm.run(["squeue", "-h"])[1] == "" or self.slurm.run(["scancel", "--user=root"]) is None, SECONDS,
                   "end of all jobs")
        for name in ("ddprun", "ddprun-keeper", "patient.sh"):
            wait_until(lambda name=name: not self.slurm.processes(name), SECONDS, f"end of every {name}")

    def folder(self, name):
        return self.slurm.jobs / "runs" / name

    def result(self, name):
        return json.loads((self.folder(name) / "result.json").read_text())

    def only_run(self):
        runs = [path.name for path in (self.slurm.jobs / "runs").iterdir() if path.name != "latest"]
        self.assertEqual(len(runs), 1, runs)
        return runs[0]

    def test_no_flag_is_needed_inside_srun(self):
        code, output = self.slurm.run(srun(3, "--", "sh", "-c", REPORT), seconds=SECONDS)
        self.assertEqual(code, 0, output)
        for rank in range(3):  # ranks are Slurm's order of nodes
            self.assertIn(f"rank {rank} of 3 on n{rank + 1}", output)
        self.assertIn("1 worker on each node", output)
        name = self.only_run()
        self.assertRegex(name, r"^slurm-\d+\.0$")
        self.assertEqual(self.result(name)["status"], "succeeded")
        self.assertFalse((self.folder(name) / ".rendezvous").exists())

    def test_uneven_workers_and_wishes_by_hand(self):
        code, output = self.slurm.run(["srun", "-N3", "bash", "-c",
                                       f"{DDPRUN} --job-id mine --nproc $((SLURM_NODEID + 1)) -- sh -c '{REPORT}'"], seconds=SECONDS)
        self.assertEqual(code, 0, output)
        for rank, node in enumerate(["n1", "n2", "n2", "n3", "n3", "n3"]):
            self.assertIn(f"rank {rank} of 6 on {node}", output)
        self.assertEqual(self.only_run(), "mine")
        code, output = self.slurm.run(srun(2, "--nnodes", "1", "--", "sh", "-c", REPORT), seconds=SECONDS)
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("rank 0 of 1"), 2)

    def test_coordinator_by_hand_needs_no_file(self):
        (self.slurm.jobs / "secret").write_text("a secret of several bytes\n", encoding="ascii")
        (self.slurm.jobs / "secret").chmod(0o600)
        code, output = self.slurm.run(srun(2, "--coordinator", "n1:29400", "--", "sh", "-c", REPORT),
                                      env={"DDPRUN_SECRET_FILE": str(self.slurm.jobs / "secret")}, seconds=SECONDS)
        self.assertEqual(code, 0, output)
        self.assertIn("rank 1 of 2 on n2", output)
        code, output = self.slurm.run(srun(2, "--coordinator", "n1:29400", "--", "true"), seconds=SECONDS)
        self.assertEqual(code, 2, output)
        self.assertIn("DDPRUN_SECRET", output)

    def test_secret_of_the_user_is_not_written(self):
        job = self.slurm.batch(f"export DDPRUN_SECRET=0123456789abcdef; srun -l {DDPRUN} -- {self.program}", "-N2")
        self.slurm.wait_output(job, "is ready", SECONDS, times=2)
        file = self.folder(f"slurm-{job}.0") / ".rendezvous"
        text = file.read_text()
        self.assertEqual(file.stat().st_mode & 0o7777, 0o600)
        self.assertNotIn("secret", text)
        self.assertEqual(json.loads(text)["slurm_job"], job)

    def test_several_tasks_on_a_node_are_refused(self):
        code, output = self.slurm.run(["srun", "-N2", "--ntasks-per-node=2", DDPRUN, "--", "true"], seconds=SECONDS)
        self.assertEqual(code, 2, output)
        self.assertEqual(output.count("srun --ntasks=2 --ntasks-per-node=1"), 4)
        self.assertFalse((self.slurm.jobs / "runs").exists())

    def test_what_is_wrong_ends_all_nodes_at_once(self):
        code, output = self.slurm.run(srun(3, "no-such.cfg"), seconds=SECONDS)
        self.assertEqual(code, 2, output)
        self.assertEqual(output.count("no-such.cfg: cannot read"), 3, output)
        # A run folder that holds a job is the host's alone to find.
        for expected in (0, 2):
            code, output = self.slurm.run(srun(2, "--job-id", "twice", "--", "true"), seconds=SECONDS)
            self.assertEqual(code, expected, output)
        self.assertIn("holds job twice already", output)
        self.assertIn("node n1 has ended with exit code 2 before the others could join", output)

    def test_run_folder_that_is_not_shared_is_named(self):
        script = f"mkdir -p /tmp/$SLURMD_NODENAME; exec {DDPRUN} --join-timeout 3 --run-dir /tmp/ddprun-slurm-$SLURMD_NODENAME-{os.getpid()}/run -- true"
        try:
            code, output = self.slurm.run(["srun", "-N2", "-l", "bash", "-c", script], seconds=SECONDS)
        finally:
            subprocess.run(["rm", "-rf", *(f"/tmp/ddprun-slurm-n{n}-{os.getpid()}" for n in (1, 2))], check=True)
        self.assertEqual(code, 3, output)
        self.assertIn("node n1, which hosts the coordinator, has not written", output)
        self.assertIn("a file system that all nodes see", output)

    def test_usr2_is_passed_on_once_and_the_job_goes_on(self):
        job = self.slurm.batch(f"exec srun -l {DDPRUN} --forward-signals USR2 -- {self.program}", "-N2")
        self.slurm.wait_output(job, "is ready", SECONDS, times=2)
        self.slurm.run(["scancel", "--signal=USR2", job])
        self.slurm.wait_output(job, "asked 1", SECONDS, times=2)
        self.slurm.run(["scancel", "--signal=USR2", job])
        output = self.slurm.wait_output(job, "asked 2", SECONDS, times=2)
        self.assertNotIn("asked 3", output)
        self.assertEqual(self.slurm.state(job), "RUNNING")

    def test_scancel_saves_and_stops_on_every_node_and_stays_cancelled(self):
        job = self.slurm.batch(f"exec srun -l bash -c 'trap : TERM; {DDPRUN} --requeue -- {self.program}; echo ended with $?'", "-N3")
        self.slurm.wait_output(job, "is ready", SECONDS, times=3)
        self.slurm.run(["scancel", job])
        output = self.slurm.wait_output(job, "ended with 143", SECONDS, times=3)
        for rank in range(3):
            self.assertIn(f"rank {rank} has saved", output)
        self.assertIn("is not queued again: somebody has cancelled it", output)
        self.assertEqual(self.slurm.wait_over(job, SECONDS), "CANCELLED")
        self.assertEqual(self.result(f"slurm-{job}.0")["status"], "stopped")

    def requeued(self, job):
        """Slurm lets a requeued job wait for two minutes; here for 3 s. (What slurmd was told to end within the same second,
        it would end in the new start too.)"""
        wait_until(lambda: self.slurm.show(job).get("Restarts") == "1" and self.slurm.state(job) == "PENDING", SECONDS,
                   f"requeue of job {job}:\n{self.slurm.output(job)[-3000:]}")
        self.slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3"])

    def test_stop_before_the_time_limit_is_queued_again_and_resumes(self):
        job = self.slurm.batch(f"exec srun -l bash -c 'trap : TERM; {DDPRUN} --requeue -- {self.program}; echo ended with $?'", "-N2", "--requeue")
        self.slurm.wait_output(job, "is ready, restart 0", SECONDS, times=2)
        self.slurm.run(["scancel", "--signal=TERM", job])  # what #SBATCH --signal=TERM@120 does
        output = self.slurm.wait_output(job, "is queued again", SECONDS)
        self.assertIn("rank 1 has saved", output)
        self.requeued(job)
        (self.slurm.jobs / "finish").touch()
        output = self.slurm.wait_output(job, "is ready, restart 1", SECONDS, times=2)
        self.assertIn(f"has queued job {job} again", output)
        self.assertEqual(self.slurm.wait_over(job, SECONDS), "COMPLETED")
        self.assertEqual(self.result(f"slurm-{job}.0")["status"], "succeeded")
        self.assertEqual(self.result(f"slurm-{job}.0")["generations"], 2)

    def test_what_slurm_sends_by_itself(self):
        """slurmctld looks at its limits twice a minute: --signal and the time limit are waited for side by side."""
        warned = self.slurm.batch(f"exec srun -l {DDPRUN} -- {self.program}", "-N2", "--time=1", "--signal=USR2@55")
        ended = self.slurm.batch(f"exec srun -l {DDPRUN} --requeue -- {self.program}", "-N2", "--requeue")
        for job in (warned, ended):
            self.slurm.wait_output(job, "is ready, restart 0", SECONDS, times=2)
        self.slurm.run(["scontrol", "update", f"JobId={ended}", "EndTime=now+1"])
        output = self.slurm.wait_output(warned, "asked 1", 60, times=2)
        self.assertEqual(self.slurm.state(warned), "RUNNING", output)
        output = self.slurm.wait_output(ended, "is queued again", 60)
        self.assertIn("DUE TO TIME LIMIT", output)
        self.assertIn("rank 0 has saved", output)
        self.requeued(ended)
        self.slurm.wait_output(ended, "is ready, restart 1", SECONDS, times=2)

    def test_tasks_of_an_array_and_steps_side_by_side(self):
        array = self.slurm.batch(f"srun {DDPRUN} -- true", "-N2", "--array=1-2", "--output=%A.out")
        wait_until(lambda: len(list((self.slurm.jobs / "runs").glob(f"slurm-{array}_[12].0/result.json"))) == 2, SECONDS, "two results")
        # Each step waits for the other one.
        step = f"srun --exact -N2 --ntasks=2 --ntasks-per-node=1 {DDPRUN} -- sh -c 'touch step$SLURM_STEP_ID; until [ -e step0 -a -e step1 ]; do sleep 0.1; done'"
        both = self.slurm.batch(f"{step} & {step} & wait", "-N2", "--ntasks-per-node=2")
        self.assertEqual(self.slurm.wait_over(both, SECONDS), "COMPLETED", self.slurm.output(both))
        self.assertEqual(self.slurm.output(both).count("succeeded after"), 2, self.slurm.output(both))
        for name in (f"slurm-{array}_1.0", f"slurm-{array}_2.0", f"slurm-{both}.0", f"slurm-{both}.1"):
            self.assertEqual(self.result(name)["status"], "succeeded")

    def test_allocation_without_srun_uses_one_node_and_says_so(self):
        job = self.slurm.batch(f"{DDPRUN} -- sh -c '{REPORT}'", "-N2")
        output = self.slurm.wait_output(job, "succeeded after", SECONDS)
        self.assertIn("rank 0 of 1 on n1", output)
        self.assertIn("has 2 nodes, and this uses one: srun ddprun", output)

    def test_node_lists_are_expanded_as_slurm_does(self):
        # ddprun's own expansion is in cli_slurm_test; these are its cases.
        for text, nodes in (("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"), ("n[09-11]", "n09 n10 n11"), ("a[1],b", "a1 b"),
                            ("n[9-11]", "n9 n10 n11"), ("gpu-a.b[1-2],login", "gpu-a.b1 gpu-a.b2 login")):
            self.assertEqual(self.slurm.run(["scontrol", "show", "hostnames", text])[1].split(), nodes.split())


class SlurmLabTest(unittest.TestCase):
    def test_nothing_is_left(self):
        require_slurm()
        with SlurmLab(1) as slurm:
            folder, pids = slurm.lab.folder, [pid for node in slurm.lab.nodes.values() for pid in node.processes()]
            self.assertEqual(slurm.run(["srun", "-N1", "true"])[0], 0)
        self.assertFalse(folder.exists())
        wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids), SECONDS, "end of every process")


if __name__ == "__main__":
    unittest.main(verbosity=2)
