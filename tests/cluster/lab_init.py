"""The first process of a node: process 1 of its own process namespace, with a network, a host name and mounts of its own.

It starts what the lab asks for, reports ends, and reaps orphans. It ends when the lab's socket is closed, and the kernel
then ends every process of the node: whatever happens to the lab, nothing is left. Single-threaded; requests and reports
are JSON objects, one a packet.
"""

import array
import json
import os
import select
import signal
import socket
import subprocess
import sys

import lab_system as system

PACKET_BYTES_MAX = 128 * 1024


def prepare(setup):
    """Host name, /proc of this process namespace, /etc/hosts of its own, cards that are asked for; returns the taps."""
    system.private_mounts()
    system.unshare(system.CLONE_NEWNET | system.CLONE_NEWUTS)
    socket.sethostname(setup["host_name"])
    system.mount("proc", "/proc", "proc")
    system.mount(setup["hosts_file"], "/etc/hosts", "", system.MS_BIND)
    for path, source in setup["private"].items():
        system.mount(source, path, "", system.MS_BIND)
    for scope in ("default", "all"):
        system.write_text(f"/proc/sys/net/ipv6/conf/{scope}/accept_dad", "0")
    return [system.open_tap(name) for name in setup["taps"]]


def configure(lines):
    """Runs lines of `ip -batch` in this node's network."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip -batch: {done.stderr.strip()}")


def start(request):
    """Starts a process of the node; returns its id in this process namespace."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pid = os.fork()
    if pid != 0:
        os.close(output)
        return pid
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        nothing = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        os.write(2, f"{request['argv'][0]}: {error}\n".encode())
    finally:
        os._exit(127)


def carry_out(request):
    kind = request["do"]
    if kind == "start":
        return {"pid": start(request)}
    if kind == "signal":
        os.kill(request["pid"], request["signal"])
    elif kind == "mount":
        system.mount(request["source"], request["target"], request["kind"], request["flags"], request["options"])
    elif kind == "unmount":
        system.unmount(request["target"])
    elif kind == "ip":
        configure(request["lines"])
    elif kind == "tap":
        return {"tap": system.open_tap(request["name"])}  # kept open, nobody reads: a card that leads nowhere
    return {}


def report_ends(lab):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        lab.send(json.dumps({"ended": pid, "code": 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status)
                             else os.WEXITSTATUS(status)}).encode())


def serve(lab):
    """The loop: requests of the lab, ends of children."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    while True:
        ready, _, _ = select.select([lab, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        report_ends(lab)  # before the answer to a request: the lab reads ends first
        if lab in ready:
            packet = lab.recv(PACKET_BYTES_MAX)
            if not packet:
                return
            try:
                answer = carry_out(json.loads(packet))
            except (OSError, ValueError) as error:
                answer = {"error": str(error)}
            lab.send(json.dumps({"answer": answer}).encode())


def run(lab, setup):
    """Becomes the first process of a node. Never returns."""
    try:
        system.end_with_parent(signal.SIGKILL)
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        taps = prepare(setup)
        socket.send_fds(lab, [b'{"answer":{}}'], taps)
        for tap in taps:
            os.close(tap)
        serve(lab)
    except BaseException as error:  # pylint: disable=broad-except
        try:
            lab.send(json.dumps({"answer": {"error": f"{type(error).__name__}: {error}"}}).encode())
        except OSError:
            print(f"node {setup['host_name']}: {error}", file=sys.stderr, flush=True)
    os._exit(0)


def received_fds(ancillary):
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
    return list(fds)
