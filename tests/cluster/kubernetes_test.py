#!/usr/bin/env python3
"""The commands of packaging/kubernetes, as pods would run them: host names, variables, a DNS that comes late, SIGTERM, and pods
that are made again. Each node of the lab is a pod; there is no cluster. What the manifests say besides is checked by
scripts/check_manifests.py."""

import json
import os
import pathlib
import re
import shutil
import signal
import sys
import unittest

from lab import DDPRUN, ROOT, Lab, require, wait_until

MANIFESTS = ROOT / "packaging" / "kubernetes"
SECRET = "correct horse battery staple"
PODS = 4
# Goes on until it is told to end; each of its generations leaves a line.
PROGRAM = """
trap 'exit 0' TERM
echo "$DDPRUN_GENERATION $RANK $WORLD_SIZE" >> "$OUT"
while [ ! -e "$OUT.end" ]; do sleep 0.05; done
"""


def command_of(manifest):
    """The list behind `command:`, word by word."""
    text = (MANIFESTS / manifest).read_text(encoding="utf-8")
    found = re.search(r"^ +command:\n((?: +- .*\n)+)", text, re.M)
    return [line.strip()[2:].strip('"') for line in found[1].splitlines()]


class Pods:
    """The pods of one Job, and what the Job's controller would do with them."""

    def __init__(self, lab, command, job, service, environment=None):
        self.lab, self.command, self.service = lab, command, service
        self.names = lab.names
        self.environment = environment or (lambda index: {})
        self.job = job
        self.out = lab.shared / "out"
        self.processes = {}

    def kubelet_hosts(self, index):
        """/etc/hosts of a pod: its own name alone."""
        return f"127.0.0.1 localhost\n{self.lab[self.names[index]].ipv4} {self.names[index]}.{self.service}.default.svc.cluster.local {self.names[index]}\n"

    def dns_comes(self):
        """The names of the headless Service."""
        for index, name in enumerate(self.names):
            lines = "".join(f"{self.lab[other].ipv4} {other}.{self.service}\n" for other in self.names)
            self.lab[name].set_hosts(self.kubelet_hosts(index) + lines)

    def words(self, index):
        words = [DDPRUN, *self.command[1:]]
        for place, word in enumerate(words):
            word = word.replace("$(JOB_COMPLETION_INDEX)", str(index))
            words[place] = re.sub("^/runs/", f"{self.lab.shared}/runs/", word)
        if "--nproc" in words:
            words[words.index("--nproc") + 1] = "1"  # there are no GPUs
        # Where the job stands: behind the last option.
        last = words.index("--resume") + 1
        return [*words[:last], "--lease", "2", *self.job]

    def start(self, index):
        process = self.lab[self.names[index]].spawn(
            self.words(index), env={"DDPRUN_SECRET": SECRET, "OUT": str(self.out), **self.environment(index)})
        self.processes[index] = process
        return process

    def generations(self):
        """{generation: [(rank, world size)]} of the workers that have begun."""
        found = {}
        if self.out.exists():
            for line in self.out.read_text(encoding="utf-8").splitlines():
                generation, rank, world = (int(word) for word in line.split())
                found.setdefault(generation, set()).add((rank, world))
        return found

    def told(self):
        return "\n".join(f"--- {self.names[index]}: {process.output()[-3000:]}" for index, process in self.processes.items())

    def wait_ranks(self, world, after=0, seconds=60):
        """Until a generation later than `after` has all ranks; returns its number."""
        wanted = {(rank, world) for rank in range(world)}
        def newest():
            return max((number for number, ranks in self.generations().items() if number > after and ranks == wanted), default=0)
        try:
            wait_until(newest, seconds, f"a generation of {world} ranks after {after}")
        except Exception as error:
            raise AssertionError(f"{error}\n{self.generations()}\n{self.told()}") from None
        return newest()

    def end(self):
        pathlib.Path(f"{self.out}.end").touch()
        return {index: process.wait(60) for index, process in self.processes.items()}


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        require()

    def make(self, manifest, names, service, environment=None):
        lab = Lab(names)
        self.addCleanup(lab.close)
        pods = Pods(lab, command_of(manifest), ["--", "sh", "-c", PROGRAM], service, environment)
        for index, name in enumerate(names):
            lab[name].set_hosts(pods.kubelet_hosts(index))
        return pods

    def result(self, pods):
        return json.loads((pods.lab.shared / "runs" / "train" / "result.json").read_text(encoding="utf-8"))

    def run_with_late_dns(self, manifest, names, service):
        pods = self.make(manifest, names, service)
        for index in reversed(range(len(names))):
            pods.start(index)
        for index in range(len(names)):
            wait_until(lambda index=index: pods.processes[index].output() or pods.processes[index].poll() is not None, 20, "a pod's first line")
        self.assertEqual([process.poll() for process in pods.processes.values()], [None] * len(names), pods.told())
        self.assertEqual(pods.generations(), {})
        pods.dns_comes()
        pods.wait_ranks(len(names))
        self.assertEqual(set(pods.end().values()), {0}, pods.told())
        self.assertEqual(self.result(pods)["status"], "succeeded")
        for name in names:
            self.assertEqual(pods.lab[name].pids_of("sh"), [])

    def test_job_starts_when_the_names_of_its_pods_come(self):
        self.run_with_late_dns("job.yaml", [f"train-{index}" for index in range(PODS)], "train")

    def test_jobset_starts_when_the_names_of_its_pods_come(self):
        self.run_with_late_dns("jobset.yaml", [f"train-node-0-{index}" for index in range(PODS)], "train")

    def test_a_pod_that_is_deleted_leaves_and_its_successor_joins(self):
        pods = self.make("job.yaml", [f"train-{index}" for index in range(PODS)], "train")
        pods.dns_comes()
        for index in range(PODS):
            pods.start(index)
        first = pods.wait_ranks(PODS)
        gone = pods.processes[2]
        gone.signal(signal.SIGTERM)  # kubectl delete pod
        self.assertEqual(gone.wait(30), 128 + signal.SIGTERM, pods.told())
        pods.start(2)
        pods.wait_ranks(PODS, after=first)
        self.assertEqual(set(pods.end().values()), {0}, pods.told())

    def test_a_pod_that_is_killed_is_replaced(self):
        pods = self.make("job.yaml", [f"train-{index}" for index in range(PODS)], "train")
        pods.dns_comes()
        for index in range(PODS):
            pods.start(index)
        first = pods.wait_ranks(PODS)
        pods.processes[3].signal(signal.SIGKILL)
        pods.processes[3].wait(10)
        pods.start(3)
        pods.wait_ranks(PODS, after=first)
        self.assertEqual(set(pods.end().values()), {0}, pods.told())

    def test_the_others_wait_for_the_first_pod_and_go_on_with_its_successor(self):
        pods = self.make("job.yaml", [f"train-{index}" for index in range(PODS)], "train")
        pods.dns_comes()
        for index in range(PODS):
            pods.start(index)
        first = pods.wait_ranks(PODS)
        pods.processes[0].signal(signal.SIGKILL)
        pods.processes[0].wait(10)
        pods.start(0)
        pods.wait_ranks(PODS, after=first)
        self.assertEqual(set(pods.end().values()), {0}, pods.told())
        self.assertEqual(self.result(pods)["status"], "succeeded")

    def test_all_are_made_again_when_the_first_pod_is_deleted(self):
        pods = self.make("job.yaml", [f"train-{index}" for index in range(PODS)], "train")
        pods.dns_comes()
        for index in range(PODS):
            pods.start(index)
        first = pods.wait_ranks(PODS)
        pods.processes[0].signal(signal.SIGTERM)
        self.assertEqual({process.wait(30) for process in pods.processes.values()}, {128 + signal.SIGTERM}, pods.told())
        for index in range(PODS):
            pods.start(index)
        pods.wait_ranks(PODS, after=first)
        self.assertEqual(set(pods.end().values()), {0}, pods.told())

    # A mounted Secret is a link to a file in a folder that can be replaced as a whole.
    def test_a_mounted_secret_works(self):
        folder = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"ddprun-secret-{os.getpid()}"
        (folder / "..2026").mkdir(parents=True)
        self.addCleanup(shutil.rmtree, folder)
        (folder / "..2026" / "secret").write_text(SECRET, encoding="utf-8")
        (folder / "..2026" / "secret").chmod(0o400)
        (folder / "..data").symlink_to("..2026")
        (folder / "secret").symlink_to("..data/secret")
        pods = self.make("job.yaml", [f"train-{index}" for index in range(PODS)], "train",
                         lambda index: {"DDPRUN_SECRET": None, "DDPRUN_SECRET_FILE": str(folder / "secret")})
        pods.dns_comes()
        for index in range(PODS):
            pods.start(index)
        pods.wait_ranks(PODS)
        self.assertEqual(set(pods.end().values()), {0}, pods.told())

    def test_kubeflows_variables_are_enough(self):
        names = ["train-node-0-0", "train-node-0-1"]
        pods = self.make("kubeflow.yaml", names, "train", lambda index: {
            "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(index), "PET_MASTER_ADDR": "train-node-0-0.train",
            "PET_MASTER_PORT": "29500"})
        self.assertEqual(pods.command, ["ddprun", "--run-dir", "/runs/train", "--resume", "/app/train.py"])
        for index in (1, 0):
            pods.start(index)
        pods.dns_comes()
        pods.wait_ranks(2)
        self.assertEqual(set(pods.end().values()), {0}, pods.told())

    def test_the_configuration_in_the_manifest_is_right(self):
        text = (MANIFESTS / "job.yaml").read_text(encoding="utf-8")
        block = re.search(r"^  train.cfg: \|\n((?:    .*\n)+)", text, re.M)[1]
        with Lab(["a"]) as lab:
            config = lab.shared / "train.cfg"
            config.write_text("".join(line[4:] + "\n" for line in block.splitlines()), encoding="utf-8")
            if not pathlib.Path("/usr/share/datasets/fashion-mnist").exists():
                self.skipTest("needs the Debian package dataset-fashion-mnist")
            code, output = lab["a"].run([DDPRUN, "--dry-run", "--device", "cpu", config])
            self.assertEqual(code, 0, output)

    def test_without_a_secret_nothing_starts(self):
        pods = self.make("job.yaml", ["train-0", "train-1"], "train", lambda index: {"DDPRUN_SECRET": None})
        process = pods.start(0)
        self.assertEqual(process.wait(20), 2, process.output())
        self.assertIn("DDPRUN_SECRET", process.output())
        self.assertFalse((pods.lab.shared / "runs").exists())


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(unittest.main(verbosity=2))
