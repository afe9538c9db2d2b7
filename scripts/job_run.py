"""One ddprun job as seen from outside, for benchmarks and soak tests: started in a fresh run folder, followed through
events.jsonl, ended when it takes too long. Contracts: run folder, events and result.json as docs describe them."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build" / "bin"))
DDPRUN = str(BIN / "ddprun")
REFERENCE_CONFIG = str(ROOT / "examples" / "fashion_mnist.cfg")
POLL_SECONDS = 0.002


class JobError(Exception):
    """The job did not do in time what the caller waits for."""


def descendants(pid):
    """Every living descendant of a process, as {pid: (start time in ticks, name)}."""
    parents = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                head, tail = file.read().rsplit(")", 1)
        except OSError:
            continue  # gone meanwhile
        fields = tail.split()
        if fields[0] != "Z":
            parents[int(entry)] = (int(fields[1]), fields[19], head.split("(", 1)[1])
    found = {}
    grew = True
    while grew:
        grew = False
        for child, (parent, start, name) in parents.items():
            if child not in found and (parent == pid or parent in found):
                found[child] = (start, name)
                grew = True
    return found


def still_there(processes):
    """Those of a descendants() result that still run (the same process, no zombie)."""
    left = {}
    for pid, (start, name) in processes.items():
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z" and fields[19] == start:
            left[pid] = name
    return left


class Job:
    """A running `ddprun`. Use as a context manager: on leaving, what still runs is killed, and the run folder is
    removed unless keep was set."""

    def __init__(self, arguments, timeout_seconds, run_dir=None):
        self.keep = False
        self.events = []
        self.base = tempfile.mkdtemp(prefix="ddprun-job-") if run_dir is None else None
        self.run_dir = pathlib.Path(self.base) / "run" if run_dir is None else pathlib.Path(run_dir)
        self.console = tempfile.TemporaryFile("w+")
        self._offset = 0
        self._partial = ""
        self.command = [DDPRUN, "--run-dir", str(self.run_dir), *arguments]
        self.deadline = time.monotonic() + timeout_seconds
        self.start_time = time.time()
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.console,
                                        stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        processes = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in still_there(processes):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if kind is not None and issubclass(kind, JobError):
            self.keep = True
            print(f"  kept for a look: {self.run_dir}; last console lines:\n{self.console_tail()}", flush=True)
        if not self.keep and self.base is not None:
            shutil.rmtree(self.base, ignore_errors=True)
        self.console.close()

    def console_tail(self, lines=15):
        self.console.seek(0)
        return "".join("    " + line for line in self.console.readlines()[-lines:])

    def read_events(self):
        """Takes in the events written since the last call."""
        try:
            with open(self.run_dir / "events.jsonl", encoding="utf-8") as file:
                file.seek(self._offset)
                text = file.read()
                self._offset = file.tell()
        except FileNotFoundError:
            return
        *whole, self._partial = (self._partial + text).split("\n")
        self.events += [json.loads(line) for line in whole]

    def find(self, name, **fields):
        """The first event of that name with these field values, or None."""
        for event in self.events:
            if event["event"] == name and all(event.get(key) == value for key, value in fields.items()):
                return event
        return None

    def wait_until(self, condition, what):
        """Calls condition() after each look at the events until it returns something true, and returns that."""
        while True:
            ended = self.process.poll() is not None
            self.read_events()
            answer = condition()
            if answer:
                return answer
            if ended:
                raise JobError(f"the job ended with code {self.process.returncode} before {what}")
            if time.monotonic() > self.deadline:
                raise JobError(f"no {what} before the time limit")
            time.sleep(POLL_SECONDS)

    def wait_event(self, name, **fields):
        wanted = " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
        return self.wait_until(lambda: self.find(name, **fields), wanted)

    def wait_moment(self, seconds):
        """Lets the job run for so long (its deadline holds); returns early when it ends."""
        end = min(time.monotonic() + seconds, self.deadline)
        try:
            self.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        self.read_events()

    def wait_end(self):
        """Waits for the end; returns (exit code, result.json as a dict)."""
        try:
            code = self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise JobError("the job did not end before the time limit") from None
        self.read_events()
        try:
            return code, json.loads((self.run_dir / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise JobError(f"exit code {code}, but result.json cannot be read: {error}") from None

    def generation(self):
        """The newest generation that has started; 0 before the first."""
        return max((e["generation"] for e in self.events if e["event"] == "generation_started"), default=0)

    def worker_pids(self, generation):
        """rank → pid of the workers of a generation that have started."""
        return {e["rank"]: e["pid"] for e in self.events
                if e["event"] == "worker_started" and e["generation"] == generation}
