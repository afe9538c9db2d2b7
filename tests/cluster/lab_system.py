"""System calls that Python has no name for, as the lab needs them: namespaces, mounts, taps, end with the parent."""

import ctypes
import fcntl
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_REC, MS_BIND, MS_PRIVATE, MNT_DETACH = 0x4000, 0x1000, 1 << 18, 2
PR_SET_PDEATHSIG = 1
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def checked(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags):
    checked(LIBC.unshare(flags), "unshare")


def mount(source, target, kind, flags=0, options=""):
    checked(LIBC.mount(os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()),
            f"mount {kind or 'bind'} {target}")


def unmount(target):
    checked(LIBC.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def private_mounts():
    """Gives this process mounts of its own: what it mounts is seen by its children alone and ends with them."""
    unshare(CLONE_NEWNS)
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def end_with_parent(signal_number):
    checked(LIBC.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def open_tap(name):
    """A tap device in this process's network namespace; it lives as long as the descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH14s", name.encode(), IFF_TAP | IFF_NO_PI, b""))
    return tap


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
