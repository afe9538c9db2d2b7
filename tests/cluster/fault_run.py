"""One run of the fault runner: a job over four nodes, the faults of its schedule, and the checks afterwards.

Single-threaded: one loop reads the job's events and carries out what is due. Times are those of the monotonic clock.
"""

import errno
import heapq
import itertools
import pathlib
import signal
import time

import fault_checks as checks
from fault_schedule import NODES, SPARE
from lab import LabError, state_of
from nodes_job import NodesJob, built_for_tests

STEPS = {"builtin": 150, "fake": 300}
STEP_MICROSECONDS = 10000  # of the fake worker
LINK_SECONDS = 0.002       # delay of each link, so that the built-in trainer's steps take a while and no processor time
JOB_SECONDS_MAX = 100
GRACE_SECONDS = 5
LEASE_SECONDS = 1
MEMBER_SECONDS_MAX = 4     # from the end of the job until members that know of it have ended
LEAVE_SECONDS_MAX = 40
WORKERS = {"builtin": "ddp-worker", "fake": "fault_worker"}
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Run:
    """State of one run; problems gathers sentences about what went wrong."""

    def __init__(self, lab, schedule, steps=None):
        self.lab, self.schedule = lab, schedule
        self.steps = steps or STEPS[schedule.trainer]
        self.problems, self.done, self.missed, self.thaws = [], [], [], []
        self.agenda, self.order = [], itertools.count()
        self.leaving = []          # (process, deadline)
        self.killed = set()        # processes whose exit code says nothing
        self.ending_host = False   # a host_kill is under way
        self.restarted = False
        self.trace = lab.folder / "trace"
        self.trace.mkdir()
        self.job = self.new_job()

    def new_job(self, extra=()):
        schedule = self.schedule
        options = ["--max-restarts", "30", "--node-strikes", "0", "--grace", str(GRACE_SECONDS), "--join-timeout", "60", *schedule.options, *extra]
        if schedule.trainer == "builtin":
            options += [part for pair in (f"train.steps={self.steps}", "train.evaluate=false", "data.batch_size=8", "data.workers=1",
                                          "checkpoint.every_steps=15", "log.every_steps=1000") for part in ("--set", pair)]
            job = [str(ROOT / "examples" / "fashion_mnist.cfg")]
        else:
            job = ["--", built_for_tests("fault_worker"), str(self.steps), str(STEP_MICROSECONDS), str(self.trace)]
        return NodesJob(self.lab, job, schedule.nnodes, schedule.way, options=options, lease=LEASE_SECONDS,
                        env={"OMP_NUM_THREADS": "1"})

    # Members.
    def join(self, name):
        env = {}
        offset = self.schedule.clock_seconds.get(name)
        if offset:
            env = {"LD_PRELOAD": built_for_tests("libwrong_clock.so"), "WRONG_CLOCK_SECONDS": f"{offset:.0f}"}
        return self.job.join(name, env=env)

    def start_all(self):
        self.job.host()
        for name in NODES:
            if name != self.job.host_name or self.schedule.way == "apart":
                self.join(name)

    def member(self, name):
        """A living member's process that is not the host itself; another node's when this one has none."""
        alive = {node: process for node, process in self.job.members.items()
                 if process is not self.job.host_process and process.poll() is None}
        node = name if name in alive else next(iter(sorted(alive)), None)
        return (node, alive[node]) if node else (None, None)

    def come_back(self, fault, name):
        """A node that has gone comes back; where the job can do without it, it stays away now and then."""
        can_do_without = self.schedule.nodes_min <= 2 and not self.schedule.options and len(self.schedule.faults) <= 2
        if can_do_without and fault.choice % 5 == 0:
            return
        self.at(fault.back_after_seconds, lambda: self.join_if_running(name))

    def join_if_running(self, name):
        if self.ending_host:
            return
        process = self.job.members.get(name)
        if process is None or process.poll() is not None:
            if self.lab[name].dead:
                self.lab.power_on(name)
                self.lab.links_of(name, delay_seconds=LINK_SECONDS)
            self.join(name)

    # Faults. Each returns what was hit, or None when there was nothing to hit.
    def do_worker(self, fault):
        for name in [fault.node, *NODES]:
            pids = self.lab[name].pids_of(WORKERS[self.schedule.trainer]) if not self.lab[name].dead else []
            if pids:
                self.lab[name].signal(pids[fault.choice % len(pids)], signal.SIGKILL)
                return name
        return None

    def do_keeper(self, fault):
        pids = self.lab[fault.node].pids_of("ddprun-keeper") if not self.lab[fault.node].dead else []
        if not pids:
            return None
        self.lab[fault.node].signal(pids[fault.choice % len(pids)], signal.SIGKILL)
        return fault.node

    def do_agent(self, fault):
        name, process = self.member(fault.node)
        if not name:
            return None
        host = self.job.host_process  # apart: it may be on the same node, and lives on
        before = {pid for pid, (own, _, _) in self.lab[name].processes().items() if host.node.name != name or own != host.pid}
        self.killed.add(process)
        process.signal(signal.SIGKILL)
        self.at(2.0, lambda: self.expect_gone(name, before))
        self.come_back(fault, name)
        return name

    def expect_gone(self, name, pids):
        left = {pid: found for pid, found in self.lab[name].processes().items() if pid in pids and state_of(pid) not in "TtZX"}
        if left:
            self.problems.append(f"2 s after kill -9 of the agent on node {name} these are left: {left}")

    def do_node(self, fault):
        name, process = self.member(fault.node)
        if not name:
            return None
        self.killed.add(process)
        self.lab[name].power_off()
        self.come_back(fault, name)
        return name

    def do_agent_stop(self, fault):
        name, process = self.member(fault.node)
        if name:
            process.signal(signal.SIGSTOP)
            self.at(fault.seconds, lambda: process.signal(signal.SIGCONT))
        return name

    def do_freeze(self, fault):
        name, _ = self.member(fault.node)
        if name:
            self.freeze(name, fault.seconds)
        return name

    def do_host_freeze(self, fault):
        self.freeze(self.job.host_name, fault.seconds)
        return self.job.host_name

    def freeze(self, name, seconds):
        def thaw():
            if not self.lab[name].dead:
                self.thaws.append((name, time.monotonic()))
                self.lab[name].thaw()
        self.lab[name].freeze()
        self.at(seconds, thaw)

    def mend(self, name):
        if name not in self.lab.nodes or not self.lab[name].dead:
            self.lab.links_of(name, cut=False, loss=0.0, delay_seconds=LINK_SECONDS)

    def do_link(self, fault, **values):
        name, _ = self.member(fault.node)
        if name:
            self.lab.links_of(name, **values)
            self.at(fault.seconds, lambda: self.mend(name))
        return name

    def do_cut(self, fault):
        return self.do_link(fault, cut=True)

    def do_slow(self, fault):
        return self.do_link(fault, delay_seconds=0.05 + 0.25 * fault.strength)

    def do_lossy(self, fault):
        return self.do_link(fault, loss=0.05 + 0.25 * fault.strength)

    def do_half_open(self, fault):
        name, _ = self.member(fault.node)
        if name:
            for other in self.lab.names:
                if other != name:
                    source, target = (name, other) if fault.choice % 2 else (other, name)
                    self.lab.link(source, target, cut=True)
            self.at(fault.seconds, lambda: self.mend(name))
        return name

    def do_disk_full(self, fault):
        path = self.lab.shared / "filler"
        with open(path, "wb", buffering=0) as file:
            block = 1 << 20
            while block >= 512:
                try:
                    file.write(b"\0" * block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    block //= 2
        self.at(fault.seconds, lambda: path.unlink(missing_ok=True))
        return "the run folder"

    def do_leave(self, fault):
        name, process = self.member(fault.node)
        if name:
            process.signal(signal.SIGTERM)
            self.leaving.append((process, time.monotonic() + LEAVE_SECONDS_MAX))
            self.when(lambda: process.poll() is not None, lambda: self.come_back(fault, name))
        return name

    def do_spare(self, _):
        process = self.job.members.get(SPARE)
        if process is not None and process.poll() is None:
            return None
        self.join_if_running(SPARE)
        return SPARE

    def do_host_kill(self, _):
        self.ending_host = True
        self.job.host_process.signal(signal.SIGKILL)
        return self.job.host_name

    def resume_after_host_kill(self):
        """Every worker must be gone after the lease; then the launchers are ended and the job is started again."""
        self.clear_faults()
        deadline = time.monotonic() + LEASE_SECONDS + 3
        workers = WORKERS[self.schedule.trainer]
        while any(not node.dead and node.pids_of(workers) for node in self.lab.nodes.values()):
            if time.monotonic() > deadline:
                self.problems.append(f"workers are left {LEASE_SECONDS + 3} s after kill -9 of the coordinator")
                break
            time.sleep(0.02)
        for name, process in self.job.members.items():
            process.signal(signal.SIGKILL)
            self.killed.add(process)
            if not self.lab[name].dead:
                process.wait(5)
        for name, node in self.lab.nodes.items():
            if node.dead:
                self.lab.power_on(name)
                self.lab.links_of(name, delay_seconds=LINK_SECONDS)
            node = self.lab[name]
            gone = time.monotonic() + 3
            while node.processes() and time.monotonic() < gone:
                time.sleep(0.01)
            if node.processes():
                self.problems.append(f"left on node {name} after its launcher was killed: {node.processes()}")
                node.signal_all(signal.SIGKILL)
        events = self.job.events
        began = (self.job.run_dir / "job.json").exists()
        self.job = self.new_job(["--resume"] if began else [])
        self.job.events, self.job._offset = (events, self._offset_of(events)) if began else ([], 0)
        self.ending_host, self.restarted = False, True
        self.start_all()

    def _offset_of(self, events):
        return (self.job.run_dir / "events.jsonl").stat().st_size if events else 0

    # The loop.
    def at(self, seconds, action):
        heapq.heappush(self.agenda, (time.monotonic() + seconds, next(self.order), action))

    def when(self, condition, action):
        def look():
            if condition():
                action()
            else:
                self.at(0.05, look)
        self.at(0.05, look)

    def anchor_reached(self, fault, index):
        if fault.follows:
            before = self.schedule.faults[index - 1]
            hit = next((at for at, done, _ in self.done if done is before), None)
            return hit is not None and any(e["event"] == "generation_ended" for e in self.job.events[hit:])
        name = {"joined": "node_joined", "started": "generation_started", "training": "training_progressed",
                "checkpoint": "checkpoint_started"}[fault.anchor]
        return any(e["event"] == name for e in self.job.events)

    def strike(self, fault):
        if self.job.host_process.poll() is not None:
            return
        hit = getattr(self, f"do_{fault.kind}")(fault)
        if hit:
            self.done.append((len(self.job.events), fault, hit))
        else:
            self.missed.append(fault.kind)

    def clear_faults(self):
        """Ends whatever still lasts: links, frozen processes, the full disk."""
        self.agenda.clear()
        (self.lab.shared / "filler").unlink(missing_ok=True)
        for name, node in self.lab.nodes.items():
            if not node.dead:
                self.mend(name)
                if any(state_of(pid) in "Tt" for pid in node.processes()):
                    self.thaws.append((name, time.monotonic()))
                    node.thaw()

    def go(self):
        """Runs the job to its end; returns (exit code of the host, result.json)."""
        for name in self.lab.names:
            self.lab.links_of(name, delay_seconds=LINK_SECONDS)
        deadline = time.monotonic() + JOB_SECONDS_MAX
        self.start_all()
        if self.schedule.spare_at_start:
            self.join(SPARE)
        waiting = list(enumerate(self.schedule.faults))
        while True:
            self.job.read_events()
            if self.job.host_process.poll() is not None:
                if not self.ending_host:
                    break
                self.resume_after_host_kill()
            for entry in list(waiting):
                index, fault = entry
                if self.anchor_reached(fault, index):
                    waiting.remove(entry)
                    self.at(fault.delay_seconds, lambda fault=fault: self.strike(fault))
            while self.agenda and self.agenda[0][0] <= time.monotonic():
                heapq.heappop(self.agenda)[2]()
            for process, limit in self.leaving:
                if process.poll() is None and time.monotonic() > limit:
                    raise LabError(f"node {process.node.name} did not leave in {LEAVE_SECONDS_MAX} s; {self.job.told()}")
            if time.monotonic() > deadline:
                raise LabError(f"the job did not end in {JOB_SECONDS_MAX} s; {self.job.told()}")
            time.sleep(0.005)
        self.missed += [fault.kind for _, fault in waiting]
        self.clear_faults()
        return self.job.wait_end(5)

    def end_members(self):
        """Members end with the job. One that was cut off when it ended is told to go, twice, and goes."""
        deadline = time.monotonic() + MEMBER_SECONDS_MAX
        members = {n: p for n, p in self.job.members.items() if p is not self.job.host_process and not self.lab[n].dead}
        while any(p.poll() is None for p in members.values()) and time.monotonic() < deadline:
            time.sleep(0.01)
        late = {n: p for n, p in members.items() if p.poll() is None}
        for _ in range(2):
            for process in late.values():
                process.signal(signal.SIGTERM)
            limit = time.monotonic() + 1.5
            while any(p.poll() is None for p in late.values()) and time.monotonic() < limit:
                time.sleep(0.01)
        deadline = time.monotonic() + 4
        while any(p.poll() is None for p in late.values()) and time.monotonic() < deadline:
            time.sleep(0.01)
        for name, process in members.items():
            if process.poll() is None:
                self.problems.append(f"the member on node {name} does not end after the job and two SIGTERM")
            elif name not in late and process not in self.killed and process.code != 0 and \
                    process not in [leaver for leaver, _ in self.leaving]:
                self.problems.append(f"the member on node {name} ended with {process.code}, the job with 0")

    def check(self, code, result, digest):
        """Everything that must hold. digest: of the undisturbed built-in job, or None."""
        events, schedule = self.job.events, self.schedule
        if code != 0 or result.get("status") != "succeeded":
            self.problems.append(f"the host ended with {code}: {result.get('failure_kind')} {result.get('reason')}")
        full = any(fault.kind == "disk_full" for _, fault, _ in self.done)
        sizes = {e["world_size"] for e in events if e["event"] == "generation_started"}
        if not full:  # a full disk may swallow lines of events.jsonl
            self.problems += checks.check_generations(events, schedule.nodes_min, 4)
            charged = sum(1 for e in events if e["event"] == "restart_scheduled" and not e.get("free"))
            if result.get("restarts") not in (None, charged):
                self.problems.append(f"result.json counts {result['restarts']} restarts, events {charged}")
            if charged and not self.restarted and all(f.kind in ("leave", "spare") for _, f, _ in self.done):
                self.problems.append("a planned change of the nodes was charged to the restart budget")
        self.problems += checks.check_checkpoints(self.job.run_dir)
        if schedule.trainer == "fake":
            self.problems += checks.check_overlap(checks.read_traces(self.trace), self.thaws)
            self.check_fake_result(code)
        elif code == 0 and sizes == {4} and not full:
            if result.get("final_step") != self.steps:
                self.problems.append(f"final step {result.get('final_step')}, not {self.steps}")
            if digest and result.get("weights_digest") != digest:
                self.problems.append(f"weights digest {result.get('weights_digest')}, undisturbed {digest}")
        left = self.lab.processes()
        if left:
            self.problems.append(f"processes are left: {left}")

    def check_fake_result(self, code):
        slope, offset = checks.expected_final(self.steps)
        wanted = f"final slope {slope:.17g} offset {offset:.17g} step {self.steps}"
        last = self.job.generation()
        if code == 0 and wanted not in self.job.log(last, 0):
            self.problems.append(f"rank 0 of generation {last} did not print {wanted!r}: {self.job.log(last, 0)[-300:]!r}")
