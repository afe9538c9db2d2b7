"""What happens in one run of the fault runner: a pure function of the seed.

A fault begins a while after a moment of the job (its anchor), and where it has a duration it ends then. Which processes
exist at that time is known at the run only, so a fault names nodes by place and processes by a drawn number.
"""

import dataclasses
import random

KINDS = {
    # name: (weight, what it is)
    "worker": (5, "kill -9 of a worker"),
    "agent": (3, "kill -9 of a member's ddprun; the node comes back"),
    "keeper": (2, "kill -9 of a keeper"),
    "node": (3, "a machine is gone at once; it comes back"),
    "agent_stop": (3, "SIGSTOP of a member's ddprun, SIGCONT later"),
    "freeze": (3, "every process of a member stops, and goes on later"),
    "host_freeze": (1, "every process of the coordinator's node stops, and goes on later"),
    "cut": (4, "a member's link is cut, and mended later"),
    "half_open": (3, "one direction between a member and the others is cut, and mended later"),
    "slow": (2, "a member's link has a delay of 50 to 300 ms"),
    "lossy": (2, "a member's link loses 5 to 30 of 100 packets"),
    "disk_full": (2, "the run folder's disk is full for a while"),
    "leave": (3, "SIGTERM to a member: it leaves in order; the node comes back"),
    "spare": (3, "one more node joins"),
    "host_kill": (1, "kill -9 of the coordinator; the job is started again with --resume"),
}
ENDS_A_GENERATION = ("worker", "agent", "keeper", "node", "leave")  # for certain: another fault may come during the recovery
ANCHORS = ["joined", "started", "training", "checkpoint", "training", "training"]
NODES = "abcd"
SPARE = "e"


@dataclasses.dataclass
class Fault:
    """One fault. `follows`: begins behind the end of the generation that the fault before it ended."""
    kind: str
    node: str
    anchor: str
    delay_seconds: float
    seconds: float
    choice: int
    back_after_seconds: float
    strength: float
    follows: bool = False

    def __str__(self):
        when = "during the recovery" if self.follows else f"at {self.anchor}"
        where = "" if self.kind == "disk_full" else f"({self.node})"
        return f"{self.kind}{where} {when} +{self.delay_seconds:.2f} s for {self.seconds:.2f} s"


@dataclasses.dataclass
class Schedule:
    """One run: how the job is started, and its faults."""
    seed: int
    trainer: str
    way: str
    nnodes: str
    options: list
    spare_at_start: bool
    clock_seconds: dict
    faults: list

    def __str__(self):
        clocks = "".join(f", clock of {node} {seconds:+.0f} s" for node, seconds in self.clock_seconds.items())
        spare = ", a spare" if self.spare_at_start else ""
        options = " " + " ".join(self.options) if self.options else ""
        return f"{self.trainer} {self.way} --nnodes {self.nnodes}{options}{spare}{clocks}: " + "; ".join(map(str, self.faults))

    @property
    def nodes_min(self):
        return int(self.nnodes.split(":")[0])


def draw_fault(chooser, kinds, follows):
    names = list(kinds)
    kind = chooser.choices(names, [KINDS[name][0] for name in names])[0]
    node = "a" if kind in ("host_freeze", "host_kill") else chooser.choice(NODES[1:])
    if kind in ("worker", "keeper"):
        node = chooser.choice(NODES)
    elif kind == "spare":
        node = SPARE
    long = chooser.random() < 0.5  # longer than the lease, or shorter
    seconds = chooser.uniform(2.2, 5.0) if long else chooser.uniform(0.1, 1.5)
    if kind in ("slow", "lossy"):
        seconds = chooser.uniform(0.5, 3.0)
    return Fault(kind, node, chooser.choice(ANCHORS), chooser.uniform(0.0, 0.3 if follows else 1.5), seconds,
                 chooser.randrange(1 << 30), chooser.uniform(0.0, 3.0), chooser.random(), follows)


def make_schedule(seed, trainer="builtin", ways=("together", "apart"), kinds=tuple(KINDS)):
    chooser = random.Random(f"fault-{seed}")
    if trainer == "mixed":
        trainer = chooser.choice(["builtin", "fake"])
    way = chooser.choice(list(ways))
    nnodes = chooser.choice(["4", "2:4", "2:4", "3:4"])
    options = []
    if nnodes != "4" and chooser.random() < 0.3:
        options = ["--on-node-loss", "wait"]
    count = chooser.choices([1, 2, 3], [5, 3, 1])[0]
    faults = []
    for index in range(count):
        follows = index > 0 and faults[-1].kind in ENDS_A_GENERATION and chooser.random() < 0.5
        fault = draw_fault(chooser, kinds, follows)
        if fault.kind == "host_kill" and any(other.kind == "host_kill" for other in faults):
            fault.kind, fault.node = "worker", chooser.choice(NODES)
        faults.append(fault)
    clocks = {chooser.choice(NODES[1:]): chooser.choice([-1, 1]) * chooser.uniform(2, 250)} if chooser.random() < 0.2 else {}
    return Schedule(seed, trainer, way, nnodes, options, chooser.random() < 0.2, clocks, faults)
