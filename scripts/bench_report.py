"""How benchmarks print what they measured: quartiles, and one line of the table in docs/benchmarks.md."""

import datetime
import os
import pathlib
import platform
import shlex
import statistics
import subprocess

from job_run import DDPRUN, ROOT


def pins():
    """versions.env as a dict."""
    lines = (ROOT / "versions.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def hardware():
    model = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    gpus = ""
    if os.path.exists("/dev/nvidiactl"):
        names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                               capture_output=True, text=True, check=False).stdout.split("\n")
        names = [name for name in names if name]
        gpus = f", {len(names)} × {names[0]}" if names else ""
    return f"{len(os.sched_getaffinity(0))} cores {model}{gpus}"


def version(command):
    """First line that a program prints about its version."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return f"{command[0]}: not there"
    return (done.stdout or done.stderr).strip().split("\n")[0]


class Sample:
    """Measured values in seconds (or another unit)."""

    def __init__(self, values):
        self.values = sorted(values)

    @property
    def median(self):
        return statistics.median(self.values)

    def text(self, unit="s", digits=3):
        """Median, quartiles, extremes and count."""
        values = self.values
        if len(values) == 1:
            return f"{values[0]:.{digits}f} {unit}"
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return (f"{self.median:.{digits}f} {unit} (quartiles {low:.{digits}f}–{high:.{digits}f}, "
                f"min {values[0]:.{digits}f}, max {values[-1]:.{digits}f}, n={len(values)})")


def print_row(command, peer, ours, ratio, versions=""):
    """One line for docs/benchmarks.md: date, hardware, versions, command, peer, ours, ratio."""
    if not isinstance(command, str):
        command = shlex.join(command)
    command = command.replace(DDPRUN, "build/bin/ddprun").replace(f"{ROOT}/", "")
    versions = ", ".join(part for part in (version([DDPRUN, "--version"]), versions) if part)
    cells = [datetime.date.today().isoformat(), hardware(), versions, f"`{command}`", peer, ours, ratio]
    print("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |", flush=True)
