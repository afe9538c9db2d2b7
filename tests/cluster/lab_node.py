"""A node of a lab (lab.py) as a test sees it, and the processes it was asked to start."""

import json
import os
import pathlib
import select
import signal
import socket
import time

import lab_init
import lab_system as system

POLL_SECONDS = 0.005
ANSWER_SECONDS_MAX = 20


class LabError(Exception):
    """The lab could not do what the test asked for, or something did not happen in time."""


def wait_until(condition, seconds, what):
    """Calls condition() until it returns something true, and returns that; LabError when the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise LabError(f"no {what} within {seconds} s")
        time.sleep(POLL_SECONDS)


class Process:
    """A process that a node was asked to start. pid is the one within the node."""

    def __init__(self, node, pid, argv, output):
        self.node, self.pid, self.argv, self.output_path = node, pid, argv, output
        self.code = None

    def poll(self):
        """The exit code (128 + n for signal n), or None while it runs."""
        self.node.take_reports()
        if self.code is None and self.node.dead:
            self.code = 128 + signal.SIGKILL
        return self.code

    def wait(self, seconds):
        try:
            wait_until(lambda: self.poll() is not None, seconds, f"end of {' '.join(self.argv[:3])} on node {self.node.name}")
        except LabError as error:
            raise LabError(f"{error}; its last output:\n{self.output()[-3000:]}") from None
        return self.code

    def signal(self, number):
        if self.poll() is None:
            self.node.ask({"do": "signal", "pid": self.pid, "signal": int(number)})

    def output(self):
        try:
            return pathlib.Path(self.output_path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def wait_output(self, text, seconds):
        """Waits until the output holds the text; returns all of the output."""
        def found():
            output = self.output()
            if text not in output and self.poll() is not None and text not in self.output():
                raise LabError(f"{' '.join(self.argv[:3])} ended with {self.code} without {text!r}:\n{self.output()[-3000:]}")
            return output if text in output else None
        try:
            return wait_until(found, seconds, f"{text!r} from node {self.node.name}")
        except LabError as error:
            raise LabError(f"{error}; its last output:\n{self.output()[-3000:]}") from None


class Node:
    """One machine of the lab."""

    def __init__(self, lab, name, number, host_name, private):
        self.lab, self.name, self.number = lab, name, number
        self.ipv4 = f"10.77.{number >> 8}.{number & 255}" if lab.ipv4 else None
        self.ipv6 = f"fd77::{number:x}" if lab.ipv6 else None
        self.address = self.ipv4 or self.ipv6
        self.folder = lab.folder / name
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        self.hosts_file = self.folder / "hosts"
        self.hosts_file.write_text(lab.hosts(), encoding="utf-8")
        self.started = {}
        self.dead = False
        setup = {"host_name": host_name or name, "hosts_file": str(self.hosts_file), "private": private,
                 "taps": ["eth0"] if lab.switch is not None else []}
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        system.unshare(system.CLONE_NEWPID)
        self.init_pid = os.fork()
        if self.init_pid == 0:
            for other in lab.ends():
                other.close()
            self.socket.close()
            lab_init.run(theirs, setup)
        system.checked(system.LIBC.setns(own_pids, system.CLONE_NEWPID), "setns")
        os.close(own_pids)
        theirs.close()
        self.setup = setup

    def finish_start(self):
        """Second half of the start, so that many nodes begin side by side; returns the descriptors of its taps."""
        self.await_packet()
        packet, fds, _, _ = socket.recv_fds(self.socket, 65536, 8)
        answer = json.loads(packet or b'{"answer":{"error":"ended at its start"}}')["answer"]
        if "error" in answer:
            raise LabError(f"node {self.name}: {answer['error']}")
        return fds

    def card_lines(self):
        """Lines for `ip -batch` in the node."""
        lines = ["link set lo up", f"link set eth0 mtu {self.lab.mtu} up"]
        if self.lab.switch is not None:
            lines.insert(0, f"link set eth0 address 02:00:00:00:{self.number >> 8:02x}:{self.number & 255:02x}")
        if self.ipv4:
            lines += [f"addr add {self.ipv4}/16 dev eth0", f"route add default dev eth0 src {self.ipv4}"]
        if self.ipv6:
            lines += [f"addr add {self.ipv6}/64 dev eth0 nodad", f"route add ::/0 dev eth0 src {self.ipv6}"]
        return lines

    # Requests.
    def await_packet(self):
        if not select.select([self.socket], [], [], ANSWER_SECONDS_MAX)[0]:
            raise LabError(f"node {self.name} does not answer")

    def take(self, packet):
        """Handles a packet of the node; returns the answer in it, if it holds one."""
        if not packet:
            self.dead = True
            return {"error": "the node is dead"}
        message = json.loads(packet)
        if "ended" in message:
            process = self.started.pop(message["ended"], None)
            if process is not None:
                process.code = message["code"]
            return None
        return message["answer"]

    def take_reports(self):
        while not self.dead and select.select([self.socket], [], [], 0)[0]:
            try:
                self.take(self.socket.recv(lab_init.PACKET_BYTES_MAX))
            except ConnectionError:
                self.dead = True

    def ask(self, request):
        if self.dead:
            raise LabError(f"node {self.name} is dead")
        answer = None
        try:
            self.socket.send(json.dumps(request).encode())
            while answer is None:
                self.await_packet()
                answer = self.take(self.socket.recv(lab_init.PACKET_BYTES_MAX))
        except ConnectionError:
            self.dead = True
            answer = {"error": "the node is dead"}
        if "error" in answer:
            raise LabError(f"node {self.name}: {answer['error']}")
        return answer

    def spawn(self, argv, env=None, cwd=None, output=None):
        """Starts a process; its output goes to a file of the node. env adds to (or with None takes from) the lab's."""
        self.take_reports()
        variables = {**self.lab.environment, "TMPDIR": str(self.folder / "tmp"), **(env or {})}
        self.lab.outputs += 1
        output = str(output or self.folder / f"output-{self.lab.outputs}")
        argv = [str(part) for part in argv]
        answer = self.ask({"do": "start", "argv": argv, "cwd": str(cwd or self.folder), "output": output,
                           "env": {key: str(value) for key, value in variables.items() if value is not None}})
        process = Process(self, answer["pid"], argv, output)
        self.started[process.pid] = process
        return process

    def run(self, argv, seconds=30, **options):
        """Runs a process to its end; returns (exit code, output)."""
        process = self.spawn(argv, **options)
        return process.wait(seconds), process.output()

    def set_hosts(self, text):
        self.hosts_file.write_text(text, encoding="utf-8")

    def mount_tmpfs(self, path, size):
        """An empty file system in memory of so many bytes ("4m") over a folder, seen by this node alone."""
        self.ask({"do": "mount", "source": "tmpfs", "target": str(path), "kind": "tmpfs", "flags": 0, "options": f"size={size}"})

    def bind(self, source, target):
        """Shows a file or folder at another place, on this node alone."""
        self.ask({"do": "mount", "source": str(source), "target": str(target), "kind": "", "flags": system.MS_BIND, "options": ""})

    def ip(self, *lines):
        """Runs lines of `ip -batch` on the node."""
        self.ask({"do": "ip", "lines": list(lines)})

    def add_dead_card(self, name, *addresses):
        """One more network card, which is up, and behind which nobody is."""
        self.ask({"do": "tap", "name": name})
        self.ip(f"link set {name} up", *(f"addr add {address} dev {name}" for address in addresses))

    # Processes.
    def processes(self):
        """{pid on this machine: (pid within the node, name, command line)} of all living ones but the node's first."""
        found = {}
        try:
            space = os.readlink(f"/proc/{self.init_pid}/ns/pid")
        except OSError:
            return found
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == self.init_pid:
                continue
            try:
                if os.readlink(f"/proc/{entry}/ns/pid") != space:
                    continue
                with open(f"/proc/{entry}/status", encoding="utf-8", errors="replace") as file:
                    fields = dict(line.rstrip("\n").split(":", 1) for line in file if ":" in line)
                if fields["State"].strip().startswith(("Z", "X")):
                    continue
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except (OSError, KeyError):
                continue  # gone meanwhile
            found[int(entry)] = (int(fields["NSpid"].split()[-1]), fields["Name"].strip(), command)
        return found

    def pids_of(self, name):
        """Ids within the node of its processes of this name (as in /proc/…/comm)."""
        return sorted(pid for pid, found, _ in self.processes().values() if found == name)

    def signal(self, pid, number):
        """Signals a process by its id within the node."""
        self.ask({"do": "signal", "pid": pid, "signal": int(number)})

    def signal_all(self, number):
        for host_pid in self.processes():
            try:
                os.kill(host_pid, number)
            except ProcessLookupError:
                pass

    def freeze(self):
        """Stops every process of the node, as when a machine is suspended."""
        while any(state_of(pid) not in "TtZX" for pid in self.processes()):
            self.signal_all(signal.SIGSTOP)

    def thaw(self):
        self.signal_all(signal.SIGCONT)

    def power_off(self):
        """The machine is gone at once: first its link (no connection is closed in order), then every process."""
        if self.lab.switch is not None:
            self.lab.cut(self.name)
        elif not self.dead:
            self.ip("link set eth0 down")
        self.end()

    def end(self):
        try:
            os.kill(self.init_pid, signal.SIGKILL)
            os.waitpid(self.init_pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        self.dead = True
        self.socket.close()


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"
