"""Slurm on the nodes of a lab (lab.py): a controller and one slurmd for each node, with keys, ports and files of their own.

    with SlurmLab(3) as slurm:
        job = slurm.batch("srun ddprun -- prog", nodes=3)     # job id
        slurm.wait_state(job, "COMPLETED", 20)
        code, output = slurm.run(["srun", "-N3", "hostname"])

Node `ctl` has slurmctld and is where commands are typed; n1, n2, … have slurmd. A node's file system is this machine's, but
for what `private` says (lab.py). All files are in lab.shared and end with the lab, as every process does.
Needs root, and Debian's slurm-wlm and munge.
"""

import os
import pathlib
import shutil
import unittest

from lab import Lab, LabError, require, wait_until

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged")
START_SECONDS_MAX = 30
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL")

CONF = """
ClusterName=lab
SlurmctldHost=ctl
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait={kill_wait}
OverTimeLimit=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def require_slurm():
    """Skips the test, with a line, where there is no Slurm."""
    require()
    missing = [program for program in PROGRAMS if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    if missing:
        raise unittest.SkipTest(f"needs {', '.join(missing)} (Debian packages slurm-wlm, munge)")


class SlurmLab:
    """A context manager. proctrack: pgid signals the tasks alone, as cgroup does; linuxproc every process of a step."""

    def __init__(self, count, kill_wait=30, gpus=0, proctrack="pgid"):
        require_slurm()
        self.names = [f"n{number + 1}" for number in range(count)]
        self.lab = Lab(["ctl", *self.names])
        self.folder = self.lab.shared / "slurm"
        self.jobs = self.lab.shared / "jobs"  # where batch jobs run; all nodes see it
        try:
            self.start(kill_wait, gpus, proctrack)
        except BaseException:
            self.lab.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lab.close()

    def start(self, kill_wait, gpus, proctrack):
        self.jobs.mkdir()
        for name in ("", "state", *(f"spool-{name}" for name in self.names)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        gres = f" Gres=gpu:{gpus}" if gpus else ""
        nodes = "\n".join(f"NodeName={name} NodeAddr={self.lab[name].address} CPUs=8{gres} State=UNKNOWN" for name in self.names)
        if gpus:
            nodes = "GresTypes=gpu\n" + nodes
            (self.folder / "gres.conf").write_text(f"Name=gpu File=/dev/tty[1-{gpus}]\n", encoding="ascii")
        conf = self.folder / "slurm.conf"
        conf.write_text(CONF.format(folder=self.folder, kill_wait=kill_wait, nodes=nodes, proctrack=proctrack), encoding="ascii")
        self.environment = {"SLURM_CONF": str(conf), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        self.start_munge()
        self.daemon("ctl", ["slurmctld", "-D"])
        for name in self.names:
            self.daemon(name, ["slurmd", "-D", "-N", name])
        wait_until(lambda: self.run(["sinfo", "-h", "-o", "%t %D"])[1].strip() == f"idle {len(self.names)}",
                   START_SECONDS_MAX, "idle nodes of Slurm")

    def daemon(self, node, argv):
        return self.lab[node].spawn(argv, env=self.environment)

    def start_munge(self):
        """One munged serves all nodes: its socket is a file that all see."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)
        for path in (self.lab.folder, self.lab.shared, self.folder):
            path.chmod(0o755)
        files = {name: str(self.folder / f"munge.{name}") for name in ("key", "sock", "pid", "log", "seed")}
        self.daemon("ctl", ["munged", "--foreground", "--force", f"--key-file={files['key']}", f"--socket={files['sock']}",
                            f"--pid-file={files['pid']}", f"--log-file={files['log']}", f"--seed-file={files['seed']}"])
        wait_until(pathlib.Path(files["sock"]).exists, START_SECONDS_MAX, "socket of munged")

    # Commands, typed on node ctl.
    def spawn(self, argv, env=None):
        return self.lab["ctl"].spawn(argv, env={**self.environment, **(env or {})}, cwd=str(self.jobs))

    def run(self, argv, env=None, seconds=30):
        process = self.spawn(argv, env)
        return process.wait(seconds), process.output()

    def batch(self, script, *options):
        """Queues a script of bash; returns the job's number. Its output: self.output(job)."""
        path = self.jobs / f"script-{len(list(self.jobs.glob('script-*')))}"
        path.write_text("#!/bin/bash\n" + script + "\n", encoding="utf-8")
        code, output = self.run(["sbatch", "--parsable", "--output=%j.out", "--open-mode=append", *options, str(path)])
        if code != 0:
            raise LabError(f"sbatch: {output}")
        return output.strip()

    def output(self, job):
        try:
            return (self.jobs / f"{job}.out").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def wait_output(self, job, text, seconds, times=1):
        def found():
            output = self.output(job)
            return output if output.count(text) >= times else None
        try:
            return wait_until(found, seconds, f"{text!r} from job {job}")
        except LabError as error:
            raise LabError(f"{error}; {self.state(job)}; its output:\n{self.output(job)[-4000:]}") from None

    def show(self, job):
        """Fields of `scontrol show job`."""
        output = self.run(["scontrol", "-o", "show", "job", job])[1]
        return dict(word.split("=", 1) for word in output.split() if "=" in word)

    def state(self, job):
        return self.show(job).get("JobState", "")

    def wait_over(self, job, seconds):
        """Waits until the job has ended and its processes are gone; returns its state."""
        def over():
            fields = self.show(job)
            return fields["JobState"] if fields.get("JobState") in OVER and fields.get("EndTime") else None
        try:
            return wait_until(over, seconds, f"end of job {job}")
        except LabError as error:
            raise LabError(f"{error}; {self.state(job)}; its output:\n{self.output(job)[-4000:]}") from None

    def processes(self, name):
        """Processes of the nodes whose command is `name`."""
        return sum((self.lab[node].pids_of(name) for node in self.names), [])
