"""One ddprun job over the nodes of a lab (lab.py), as its users start it, followed through events.jsonl.

Two ways to start it: `together`, the same command on each node (the first one hosts the coordinator), or `apart`, with
`ddprun coordinator` on the first node and `ddprun agent` on each.
"""

import json
import pathlib
import time

from lab import BIN, DDPRUN, LabError
from lab_node import POLL_SECONDS

PORT = 29400
SECRET = "correct horse battery staple"
LEASE_SECONDS = 1


class NodesJob:
    """A job and its events. Start it with start(), or node by node with host() and join()."""

    def __init__(self, lab, job, nnodes, way="together", nproc=1, options=(), env=None, run_dir=None, host=None,
                 lease=LEASE_SECONDS, address=None):
        """job: what follows all options (train.cfg, or -- program). options: of the job. address: of the coordinator."""
        self.lab, self.job, self.nnodes, self.way, self.nproc = lab, list(job), str(nnodes), way, nproc
        self.options, self.env = [str(option) for option in options], {"DDPRUN_SECRET": SECRET, **(env or {})}
        self.run_dir = pathlib.Path(run_dir or lab.shared / "run")
        self.host_name = host or lab.names[0]
        self.lease = lease
        node = lab[self.host_name]
        self.address = address or (node.ipv4 or f"[{node.ipv6}]") + f":{PORT}"
        self.host_process = None
        self.members = {}  # node name → its newest Process (the host's own agent too when apart)
        self.events = []
        self._offset, self._partial = 0, ""

    # Starting.
    def run_options(self):
        lease = [] if self.lease is None else ["--lease", str(self.lease)]
        return ["--nnodes", self.nnodes, "--run-dir", str(self.run_dir), *lease, *self.options]

    def host(self, extra=()):
        """The coordinator's process; together: with the host's own workers."""
        node = self.lab[self.host_name]
        if self.way == "together":
            command = [DDPRUN, *self.run_options(), "--nproc", str(self.nproc), "--coordinator", self.address, *extra, *self.job]
            self.host_process = node.spawn(command, env=self.env, cwd=self.lab.shared)
            self.members[self.host_name] = self.host_process
        else:
            listen = self.address if self.lab.ipv4 else f"[::]:{PORT}"
            command = [DDPRUN, "coordinator", "--listen", listen, *self.run_options(), *extra, *self.job]
            self.host_process = node.spawn(command, env=self.env, cwd=self.lab.shared)
        return self.host_process

    def join(self, name, nproc=None, extra=(), env=None):
        """One more member; its options do not matter to the job but for --nproc and those of the node itself."""
        nproc = str(nproc or self.nproc)
        if self.way == "together":
            command = [DDPRUN, *self.run_options(), "--nproc", nproc, "--coordinator", self.address, *extra, *self.job]
        else:
            command = [DDPRUN, "agent", "--coordinator", self.address, "--nproc", nproc, *extra]
        self.members[name] = self.lab[name].spawn(command, env={**self.env, **(env or {})}, cwd=self.lab.shared)
        return self.members[name]

    def start(self, names=None, nproc=None):
        """Host and members on these nodes (all)."""
        names = list(names or self.lab.names)
        self.host()
        for name in names:
            if name != self.host_name or self.way == "apart":
                self.join(name, (nproc or {}).get(name))
        return self

    # Following.
    def read_events(self):
        try:
            with open(self.run_dir / "events.jsonl", encoding="utf-8") as file:
                file.seek(self._offset)
                text = file.read()
                self._offset = file.tell()
        except FileNotFoundError:
            return
        *whole, self._partial = (self._partial + text).split("\n")
        self.events += [json.loads(line) for line in whole]

    def find(self, name, after=None, **fields):
        """The first event of that name with these field values (and behind the event `after`), or None."""
        seen = after is None
        for event in self.events:
            if seen and event["event"] == name and all(event.get(key) == value for key, value in fields.items()):
                return event
            seen = seen or event is after
        return None

    def wait_until(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while True:
            ended = self.host_process.poll() is not None
            self.read_events()
            answer = condition()
            if answer:
                return answer
            if ended:
                raise LabError(f"the job ended with {self.host_process.code} before {what}; {self.told()}")
            if time.monotonic() > deadline:
                raise LabError(f"no {what} within {seconds} s; {self.told()}")
            time.sleep(POLL_SECONDS)

    def wait_event(self, name, seconds=20, after=None, **fields):
        wanted = " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
        return self.wait_until(lambda: self.find(name, after, **fields), seconds, wanted)

    def wait_workers(self, generation, seconds=20):
        """Waits until every worker of a generation has started; returns {rank: worker_started event}."""
        def all_started():
            started = self.find("generation_started", generation=generation)
            workers = self.workers(generation)
            return workers if started and len(workers) == started["world_size"] else None
        return self.wait_until(all_started, seconds, f"all workers of generation {generation}")

    def workers(self, generation):
        return {e["rank"]: e for e in self.events if e["event"] == "worker_started" and e["generation"] == generation}

    def generation(self):
        return max((e["generation"] for e in self.events if e["event"] == "generation_started"), default=0)

    def wait_end(self, seconds=60):
        """Waits for the end of the host; returns (exit code, result.json or {})."""
        code = self.host_process.wait(seconds)
        self.read_events()
        try:
            return code, json.loads((self.run_dir / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return code, {}

    def log(self, generation, rank):
        try:
            return (self.run_dir / "logs" / f"g{generation}" / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def told(self):
        """The last lines of every launcher process, for a message."""
        parts = []
        processes = {"host": self.host_process, **{n: p for n, p in self.members.items() if p is not self.host_process}}
        for name, process in processes.items():
            if process is not None:
                lines = process.output().splitlines()[-12:]
                parts.append(f"{name} ({'runs' if process.code is None else process.code}):\n" + "\n".join(f"    {l}" for l in lines))
        return "\n".join(parts)


def example(name):
    return str(BIN / "examples" / name)


def built_for_tests(name):
    return str(BIN.parent / "tests" / name)
