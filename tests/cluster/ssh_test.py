#!/usr/bin/env python3
"""ddprun --hosts: agents on other hosts, started by a real ssh and sshd."""

import json
import os
import pathlib
import re
import signal
import time
import unittest

from lab import DDPRUN, ROOT, state_of, wait_until
from ssh_lab import SshLab, require_ssh

LEASE = 3
# Who each worker is, where, and what it has of its surroundings.
PROGRAM = ('echo "rank $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE on $(uname -n) in $PWD secret:${DDPRUN_SECRET-none}'
           ' master $MASTER_ADDR"')
SLEEPER = 'echo "rank $RANK runs"; exec sleep 1000'


class SshTest(unittest.TestCase):
    def setUp(self):
        require_ssh()

    def start(self, lab, hosts, *words, options=(), ssh=None, **spawn):
        """ddprun on node a."""
        argv = [DDPRUN, "--hosts", hosts, "--ssh", ssh or lab.command, "--run-dir", "run", *options, "--", "sh", "-c", *words]
        return lab["a"].spawn(argv, cwd=spawn.pop("cwd", lab.shared), **spawn)

    def await_ranks(self, job, count, seconds=30):
        wait_until(lambda: len(set(re.findall(r"rank (\d+) runs", job.output()))) == count or self.dead(job), seconds,
                   f"{count} ranks; output:\n{job.output()}")
        self.assertIsNone(job.poll(), job.output())

    def dead(self, job):
        return job.poll() is not None

    def launched(self, lab):
        """Processes of ddprun and workers on all nodes: {(node, pid): command line}."""
        return {(name, pid): line for name, found in lab.processes().items() for pid, (_, kind, line) in found.items()
                if kind.startswith("ddprun") or kind in ("sleep", "ssh") or "sleep 1000" in line}

    def await_nothing(self, lab, seconds):
        wait_until(lambda: not self.launched(lab), seconds, f"end of every process: {self.launched(lab)}")

    def events(self, lab, name):
        lines = (pathlib.Path(lab.shared) / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def test_a_program_runs_on_three_hosts_with_their_slots(self):
        with SshLab(["a", "b", "c"]) as lab:
            job = self.start(lab, "a,root@b:3,c", PROGRAM, options=["--nproc", "2"])
            self.assertEqual(job.wait(60), 0, job.output())
            address = r" master (10\.77\.0\.1|fd77::1)$"
            self.assertEqual(len(re.findall(address, job.output(), re.M)), 7, job.output())
            lines = sorted(re.sub(address, "", line) for line in job.output().splitlines() if re.match(r"\[[abc]:\d\] rank", line))
            places = [("a", 0, 2), ("a", 1, 2), ("b", 0, 3), ("b", 1, 3), ("b", 2, 3), ("c", 0, 2), ("c", 1, 2)]
            self.assertEqual(lines, [f"[{node}:{rank}] rank {rank} of 7 local {local} of {size} on {node} in {lab.shared} "
                                     "secret:none" for rank, (node, local, size) in enumerate(places)])
            self.await_nothing(lab, 5)
            self.assertNotIn("again in", job.output())
            for rank in range(7):
                self.assertTrue((lab.shared / "run" / "logs" / "g1" / f"rank{rank}.log").exists())

    def test_the_secret_is_on_no_command_line_and_in_no_environment(self):
        with SshLab(["a", "b"]) as lab:
            secret = "a-secret-of-this-test"
            job = self.start(lab, "b", SLEEPER, env={"DDPRUN_SECRET": secret})
            self.await_ranks(job, 1)
            for pids in lab.processes().values():
                for pid, (_, kind, _) in pids.items():
                    for part in ("cmdline", "environ"):
                        text = pathlib.Path(f"/proc/{pid}/{part}").read_bytes()
                        # What the kernel shows of the first process is what it was started with.
                        if part == "environ" and kind == "ddprun" and pid in {p for p in pids if "--hosts" in pids[p][2]}:
                            continue
                        self.assertNotIn(secret.encode(), text, (pid, kind, part))
            job.signal(signal.SIGINT)
            self.assertEqual(job.wait(20), 128 + signal.SIGINT, job.output())
            self.await_nothing(lab, 5)

    def test_exit_code_of_a_worker_elsewhere_is_the_jobs(self):
        with SshLab(["a", "b", "c"]) as lab:
            job = self.start(lab, "b,c", 'test $RANK = 0 && exec sleep 1000; exit 7', options=["--max-restarts", "0"])
            self.assertEqual(job.wait(60), 7, job.output())
            self.await_nothing(lab, 5)

    def test_kill_of_ddprun_leaves_nothing_on_any_host(self):
        with SshLab(["a", "b", "c"]) as lab:
            job = self.start(lab, "a,b,c", SLEEPER, options=["--nproc", "2"])
            self.await_ranks(job, 6)
            job.signal(signal.SIGKILL)
            self.await_nothing(lab, LEASE + 2)

    def test_hosts_that_cannot_be_used_are_named_with_the_fix_and_the_job_ends_at_once(self):
        with SshLab(["a", "b", "c"], without=["c"]) as lab:
            stranger = lab.client("stranger.conf", lab.known, lab.make_key("stranger"))
            nobody = lab.client("nobody.conf", lab.write("nobody", ""), lab.key)
            cases = [("b,nowhere", lab.command, "Could not resolve hostname", "check the name in --hosts"),
                     ("b,c", lab.command, "Connection refused", "is sshd running there?"),
                     ("a,b", stranger, "Permission denied", "ssh-copy-id b"),
                     ("a,b", nobody, "Host key verification failed", "by hand to accept its key: ssh b"),
                     ("a,b", "no-such-ssh", "no-such-ssh", "install openssh-client")]
            for hosts, ssh, reason, fix in cases:
                with self.subTest(reason):
                    start = time.monotonic()
                    job = self.start(lab, hosts, SLEEPER, ssh=ssh, options=["--run-dir", f"run-{reason.split()[0]}"])
                    self.assertEqual(job.wait(40), 3, job.output())
                    self.assertLess(time.monotonic() - start, 30)
                    line = next((line for line in job.output().splitlines() if reason in line and "host" in line.split()[1]), "")
                    self.assertRegex(line, r"^ddprun: host \w+: ", job.output())
                    self.assertIn(fix, line)
                    self.await_nothing(lab, 5)

    def test_missing_folder_and_missing_program_are_told_apart(self):
        with SshLab(["a", "b", "c"]) as lab:
            own = lab["a"].folder / "own"
            own.mkdir()
            lab["b"].mount_tmpfs(lab["a"].folder, "1m")
            job = self.start(lab, "a,b", SLEEPER, cwd=own)
            self.assertEqual(job.wait(40), 3, job.output())
            self.assertIn(f"host b: the folder {own} is not there", job.output())
            lab["c"].mount_tmpfs(pathlib.Path(DDPRUN).parent, "1m")
            job = self.start(lab, "a,c", SLEEPER)
            self.assertEqual(job.wait(40), 3, job.output())
            self.assertIn(f"host c: {DDPRUN} is not there", job.output())

    def test_with_a_minimum_the_job_goes_on_without_a_host(self):
        with SshLab(["a", "b", "c"], without=["c"]) as lab:
            job = self.start(lab, "a,b,c", PROGRAM, options=["--nnodes", "2:3"])
            self.assertEqual(job.wait(90), 0, job.output())
            self.assertIn("of 2 local", job.output())
            self.assertIn("host c: ssh: ", job.output())

    def test_a_killed_agent_comes_back(self):
        with SshLab(["a", "b"]) as lab:
            job = self.start(lab, "a,b", SLEEPER, options=["--on-node-loss", "wait"])
            self.await_ranks(job, 2)
            agents = [pid for pid, (_, kind, line) in lab["b"].processes().items() if kind == "ddprun" and "agent" in line]
            self.assertEqual(len(agents), 1)
            lab["b"].signal(lab["b"].processes()[agents[0]][0], signal.SIGKILL)
            wait_until(lambda: "again in 5 s" in job.output(), 10, "word of the lost agent")
            wait_until(lambda: len(self.events(lab, "generation_started")) == 2 or self.dead(job), 40, "second generation")
            wait_until(lambda: len(re.findall(r"rank 1 runs", job.output())) == 2, 30, "rank 1 again")
            job.signal(signal.SIGINT)
            self.assertEqual(job.wait(20), 128 + signal.SIGINT, job.output())
            self.await_nothing(lab, 5)

    def test_a_cut_link_ends_the_workers_behind_it_within_the_lease(self):
        with SshLab(["a", "b", "c"], network="switch") as lab:
            job = self.start(lab, "a,b,c", SLEEPER, options=["--nnodes", "2:3"])
            self.await_ranks(job, 3)
            workers = [pid for pid, (_, kind, _) in lab["c"].processes().items() if kind == "sleep"]
            lab.cut("c")
            wait_until(lambda: all(state_of(pid) in "XZ" for pid in workers), LEASE + 2, "end of the workers of c")
            wait_until(lambda: len(self.events(lab, "generation_started")) == 2 or self.dead(job), 30, "next generation")
            job.signal(signal.SIGINT)
            self.assertEqual(job.wait(30), 128 + signal.SIGINT, job.output())
            lab.heal("c")
            self.await_nothing(lab, 70)

    def test_the_trainer_gives_the_weights_of_one_machine(self):
        if not os.access(pathlib.Path(DDPRUN).parent / "ddp-worker", os.X_OK):
            self.skipTest("needs ddp-worker, which is not built")
        words = ["--set", "train.steps=30", "--set", "train.evaluate=false", "--set", "data.batch_size=8", "--set", "data.workers=1",
                 str(ROOT / "examples" / "fashion_mnist.cfg")]
        with SshLab(["a", "b", "c"]) as lab:
            for run, where in (("alone", ["--nproc", "2"]), ("hosts", ["--hosts", "b,c", "--ssh", lab.command])):
                code, output = lab["a"].run([DDPRUN, *where, "--run-dir", run, *words], cwd=lab.shared, seconds=90,
                                            env={"OMP_NUM_THREADS": "1"})
                self.assertEqual(code, 0, output)
            digests = {json.loads((lab.shared / run / "result.json").read_text(encoding="utf-8"))["weights_digest"]
                       for run in ("alone", "hosts")}
            self.assertEqual(len(digests), 1)
            self.await_nothing(lab, 5)

    def test_a_host_that_starts_anew_comes_back(self):
        with SshLab(["a", "b"], network="switch") as lab:
            job = self.start(lab, "a,b", SLEEPER, options=["--on-node-loss", "wait"])
            self.await_ranks(job, 2)
            lab["b"].power_off()
            wait_until(lambda: self.events(lab, "node_lost"), LEASE + 5, "loss of b")
            lab.power_on("b")
            lab.start_sshd("b")
            wait_until(lambda: len(re.findall(r"rank 1 runs", job.output())) == 2 or self.dead(job), 90, "rank 1 again")
            self.assertIsNone(job.poll(), job.output())
            job.signal(signal.SIGINT)
            self.assertEqual(job.wait(20), 128 + signal.SIGINT, job.output())
            self.await_nothing(lab, 5)

    def test_lines_of_many_ranks_are_whole_and_there_once(self):
        with SshLab(["a", "b"]) as lab:
            count = 2000
            job = self.start(lab, "a,b", f'i=0; while [ $i -lt {count} ]; do echo "r$RANK line $i of text"; i=$((i+1)); done',
                             options=["--nproc", "2"])
            self.assertEqual(job.wait(90), 0, job.output()[-2000:])
            found = [line for line in job.output().splitlines() if line.startswith("[")]
            expected = {f"[{node}:{rank}] r{rank} line {i} of text" for rank, node in enumerate("aabb") for i in range(count)}
            self.assertEqual(len(found), len(expected))
            self.assertEqual(set(found), expected)

    def test_bad_lists_of_hosts_start_nothing(self):
        with SshLab(["a"]) as lab:
            (lab.shared / "hosts").write_text("a slots=2\nb slots=x\n", encoding="utf-8")
            for hosts, words in [("", "value is missing"), ("a,,b", "is no name"), ("a,a", "named twice"), ("a:0", "number of workers"),
                                 ("fd00::1", "brackets"), ("-x", "is no name"), ("@missing", "missing"), ("@hosts", "hosts:2")]:
                with self.subTest(hosts):
                    job = self.start(lab, hosts, SLEEPER)
                    self.assertEqual(job.wait(20), 2, job.output())
                    self.assertIn(words, job.output())
                    self.assertFalse((lab.shared / "run").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
