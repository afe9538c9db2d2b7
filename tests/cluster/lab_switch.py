"""A switch in user space between the taps of a lab's nodes, whose links can be slow, lossy, one-way or cut.

One forked process that forwards Ethernet frames. A link is an ordered pair of nodes: what node a sends to node b. What
becomes of a frame depends on the seed and on the order of frames only. Frames that a link drops vanish silently, as
beyond a switch of a real network: no card loses its carrier and nobody is told.
"""

import heapq
import json
import os
import random
import select
import signal
import socket
import time

import lab_system as system

FRAME_BYTES_MAX = 70000
QUEUED_FRAMES_MAX = 4096  # of slow links; more are dropped, as by a full switch
FRAMES_AT_ONCE = 64       # from one node before the others have their turn


class Link:
    """Properties of one direction between two nodes."""

    def __init__(self):
        self.delay_seconds = 0.0
        self.loss = 0.0
        self.cut = False
        self.bytes_per_second = 0.0  # 0: as fast as it goes
        self.free_at = 0.0

    def set(self, values):
        for name, value in values.items():
            setattr(self, name, value)


class Switch:
    """State of the switch process."""

    def __init__(self, control, seed):
        self.control = control
        self.chooser = random.Random(seed)
        self.taps = {}    # node number → descriptor
        self.links = {}   # (from, to) → Link
        self.queue = []   # (due, sequence, node, frame)
        self.sequence = 0
        self.poller = select.epoll()
        self.poller.register(control.fileno(), select.EPOLLIN)

    def drop_port(self, node):
        tap = self.taps.pop(node, None)
        if tap is not None:
            try:
                self.poller.unregister(tap)
            except OSError:
                pass
            os.close(tap)

    def write(self, node, frame):
        tap = self.taps.get(node)
        if tap is None:
            return
        try:
            os.write(tap, frame)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != 5:  # EIO: the card is down; anything else: it is gone
                self.drop_port(node)

    def send(self, source, target, frame, now):
        link = self.links.get((source, target))
        if link is None:
            self.write(target, frame)
            return
        if link.cut or (link.loss and self.chooser.random() < link.loss):
            return
        due = now + link.delay_seconds
        if link.bytes_per_second:
            link.free_at = max(link.free_at, now) + len(frame) / link.bytes_per_second
            due += link.free_at - now
        if due <= now:
            self.write(target, frame)
        elif len(self.queue) < QUEUED_FRAMES_MAX:
            self.sequence += 1
            heapq.heappush(self.queue, (due, self.sequence, target, frame))

    def forward(self, source, frame, now):
        # Node n's card has the address 02:00:00:00:nn:nn (lab.py): the table of addresses never has to be learnt.
        target = int.from_bytes(frame[4:6], "big") if frame[:4] == b"\x02\x00\x00\x00" else None
        if target is not None:
            if target != source:
                self.send(source, target, frame, now)
            return
        for other in list(self.taps):
            if other != source:
                self.send(source, other, frame, now)

    def read_tap(self, node):
        tap = self.taps.get(node)
        now = time.monotonic()
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(tap, FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                self.drop_port(node)
                return
            self.forward(node, frame, now)
            if node not in self.taps:
                return

    def obey(self):
        """Carries out one order of the lab; False when the lab is gone."""
        packet, fds, _, _ = socket.recv_fds(self.control, 65536, 4)
        if not packet:
            return False
        order = json.loads(packet)
        if order["do"] == "port":
            self.drop_port(order["node"])
            self.taps[order["node"]] = fds[0]
            self.poller.register(fds[0], select.EPOLLIN)
        elif order["do"] == "links":
            for source, target in order["pairs"]:
                self.links.setdefault((source, target), Link()).set(order["values"])
        self.control.send(b"{}")
        return True

    def run(self):
        while True:
            timeout = max(0.0, self.queue[0][0] - time.monotonic()) if self.queue else -1
            by_tap = {tap: node for node, tap in self.taps.items()}
            for fd, _ in self.poller.poll(timeout):
                if fd == self.control.fileno():
                    if not self.obey():
                        return
                elif fd in by_tap and self.taps.get(by_tap[fd]) == fd:
                    self.read_tap(by_tap[fd])
            now = time.monotonic()
            while self.queue and self.queue[0][0] <= now:
                _, _, node, frame = heapq.heappop(self.queue)
                self.write(node, frame)


def start(seed, close_in_child):
    """Forks the switch; returns (its process id, the lab's end of its control socket)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid != 0:
        theirs.close()
        return pid, ours
    try:
        system.end_with_parent(signal.SIGKILL)
        os.setsid()
        ours.close()
        for end in close_in_child:
            end.close()
        Switch(theirs, seed).run()
    finally:
        os._exit(0)
