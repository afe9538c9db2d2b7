"""Nodes of a cluster on one machine, for tests: each has a network, process ids, a host name and mounts of its own.

    with Lab(["a", "b"]) as lab:
        server = lab["a"].spawn(["ddprun", …], env={"DDPRUN_SECRET": "…"})
        lab.cut("b")                                  # switch only: frames vanish silently, in both directions
        self.assertEqual(server.wait(10), 0)

Nodes are joined by a bridge and veth pairs (network="bridge": as fast as it goes), or by a switch in user space
(network="switch": links can be slow, lossy, one-way or cut, seeded). Node n has the addresses 10.77.0.n and fd77::n on its
card eth0. All nodes see `lab.shared` (in memory; the shared run folder); `node.folder` is a node's own. Each node has its
own /etc/hosts, which names all nodes at first.

Nothing is left when a lab ends, whatever happens: each node is a process namespace whose first process ends with the lab,
and networks and mounts have no names, so they end with their last process. Folders carry the lab's process id; the next
lab removes those of labs that were killed. Needs root. Single-threaded.
"""

import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

import lab_switch
import lab_system as system
from lab_node import ANSWER_SECONDS_MAX, LabError, Node, Process, state_of, wait_until

__all__ = ["BIN", "DDPRUN", "Lab", "LabError", "Node", "Process", "require", "state_of", "wait_until"]

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build" / "bin"))
DDPRUN = str(BIN / "ddprun")
FOLDER_PREFIX = "ddprun-lab-"
FOREIGN_VARIABLES = ("DDPRUN_", "PET_", "SLURM_", "MASTER_", "TORCHELASTIC_", "PADDLE_")


def require():
    """Skips the test, with a line, where nodes cannot be made."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root: each node is a network namespace")
    if shutil.which("ip") is None:
        raise unittest.SkipTest("needs ip (Debian package iproute2)")


def remove_left_folders():
    """Folders of labs whose process is gone."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(FOLDER_PREFIX + "*"):
        pid = path.name[len(FOLDER_PREFIX):].split("-")[0]
        if pid.isdigit() and not pathlib.Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


class Lab:
    """The nodes and what joins them. A context manager."""

    def __init__(self, names, network="bridge", ipv4=True, ipv6=True, seed=0, shared_size="256m", mtu=None,
                 host_names=None, private=None):
        """host_names: those that differ from the node's name. private: {node: {path: folder shown there instead}}."""
        require()
        remove_left_folders()
        self.ipv4, self.ipv6 = ipv4, ipv6
        self.mtu = mtu or (1500 if network == "bridge" else 32000)
        self.names = list(names)
        self.numbers = {name: index + 1 for index, name in enumerate(self.names)}
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN_VARIABLES)}
        self.outputs = self.ports = 0
        self.nodes = {}
        self.switch = self.switch_pid = self.hub = None
        self.options = {name: {"host_name": (host_names or {}).get(name), "private": (private or {}).get(name, {})}
                        for name in self.names}
        try:
            system.private_mounts()
            system.mount("tmpfs", str(self.shared), "tmpfs", 0, f"size={shared_size}")
            if network == "switch":
                self.switch_pid, self.switch = lab_switch.start(seed, [])
            self.start_nodes(self.names)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getitem__(self, name):
        return self.nodes[name]

    def ends(self):
        return [end for end in [self.switch, *(node.socket for node in self.nodes.values())] if end is not None]

    def hosts(self):
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for name, number in self.numbers.items():
            if self.ipv4:
                lines.append(f"10.77.{number >> 8}.{number & 255} {name}")
            if self.ipv6:
                lines.append(f"fd77::{number:x} {name}")
        return "\n".join(lines) + "\n"

    def start_nodes(self, names):
        for name in names:
            self.nodes[name] = Node(self, name, self.numbers[name], **self.options[name])
        taps = {name: self.nodes[name].finish_start() for name in names}
        if self.switch is not None:
            for name, fds in taps.items():
                self.tell_switch({"do": "port", "node": self.numbers[name]}, fds)
                os.close(fds[0])
        else:
            self.plug_into_bridge(names)
        for name in names:
            self.nodes[name].ip(*self.nodes[name].card_lines())

    def plug_into_bridge(self, names):
        lines = []
        if self.hub is None:  # the bridge has a network of its own: nothing shows on the machine
            self.hub = subprocess.Popen(["unshare", "-n", "sleep", "infinity"], start_new_session=True,
                                        preexec_fn=lambda: system.end_with_parent(signal.SIGKILL))
            own = os.readlink("/proc/self/ns/net")
            wait_until(lambda: os.readlink(f"/proc/{self.hub.pid}/ns/net") != own, 10, "network of the bridge")
            lines += ["link add br0 type bridge", "link set br0 up"]
        for name in names:
            self.ports += 1  # the port of a node that was powered off may still be there for a moment
            port = f"port{self.ports}"
            lines += [f"link add {port} type veth peer name eth0 netns {self.nodes[name].init_pid}",
                      f"link set {port} master br0 up"]
        self.hub_ip(*lines)

    def hub_ip(self, *lines):
        done = subprocess.run(["nsenter", "-n", "-t", str(self.hub.pid), "ip", "-batch", "-"], input="\n".join(lines),
                              text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise LabError(f"bridge: {done.stderr.strip()}")

    def power_on(self, name):
        """A new start of a node that was powered off: same name and addresses, nothing runs."""
        self.nodes[name].end()
        self.start_nodes([name])
        if self.switch is not None:
            self.heal(name)

    # Links of the switch.
    def tell_switch(self, order, fds=()):
        if self.switch is None:
            raise LabError('links need Lab(network="switch")')
        socket.send_fds(self.switch, [json.dumps(order).encode()], list(fds))
        if not select.select([self.switch], [], [], ANSWER_SECONDS_MAX)[0] or not self.switch.recv(64):
            raise LabError("the switch does not answer")

    def link(self, source, target, **values):
        """One direction: delay_seconds, loss (0 to 1), bytes_per_second, cut (True, False)."""
        self.tell_switch({"do": "links", "pairs": [[self.numbers[source], self.numbers[target]]], "values": values})

    def links_of(self, name, **values):
        """Both directions between a node and all others."""
        own = self.numbers[name]
        pairs = [pair for other in self.numbers.values() if other != own for pair in ([own, other], [other, own])]
        self.tell_switch({"do": "links", "pairs": pairs, "values": values})

    def cut(self, name):
        self.links_of(name, cut=True)

    def heal(self, name):
        self.links_of(name, cut=False, loss=0.0, delay_seconds=0.0, bytes_per_second=0.0)

    def processes(self):
        """Every living process of all nodes: {node name: {…}} for nodes that have any."""
        found = {name: node.processes() for name, node in self.nodes.items()}
        return {name: processes for name, processes in found.items() if processes}

    def close(self):
        for node in self.nodes.values():
            node.end()
        if self.hub is not None:
            self.hub.kill()
            self.hub.wait()
        if self.switch is not None:
            self.switch.close()
            os.waitpid(self.switch_pid, 0)
        try:
            system.unmount(str(self.shared))
        except OSError:
            pass  # never mounted
        shutil.rmtree(self.folder, ignore_errors=True)
