"""A real coordinator with a secret, and thousands of simulated agents (build/tests/ddprun-swarm) of 8 ranks each over loopback gRPC: its
CPU time from the moment at which the last agent begins to join until the last rank has been told rank 0's unique ID, and messages and
memory for each rank. `--plot` writes docs/scale.svg; `--agents N` measures one size alone."""

import argparse
import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time

from bench_report import print_row
from job_run import BIN, DDPRUN, ROOT

SLOTS = 8
AGENTS = [1, 8, 64, 512, 2048]
SWARM = str(BIN.parent / "tests" / "ddprun-swarm")
CPU_SECONDS_REACH = 1.0


def cpu_seconds(pid):
    """Of all threads of another process, to the nanosecond (clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def memory_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def say(swarm, expected):
    """Waits for the swarm's next line; returns it."""
    line = swarm.stdout.readline()
    fact = json.loads(line) if line else {"is": "its end"}
    if fact["is"] != expected:
        raise RuntimeError(f"the swarm said {fact['is']}, not {expected}")
    return fact


def go_on(swarm):
    swarm.stdin.write("\n")
    swarm.stdin.flush()


def measure(agents, folder):
    environment = dict(os.environ, DDPRUN_SECRET=secrets.token_hex(16))
    command = [DDPRUN, "coordinator", "--listen", "127.0.0.1:0", "--nnodes", str(agents), "--run-dir", f"{folder}/run{agents}",
               "--", "/bin/true"]
    with open(f"{folder}/coordinator{agents}.log", "w", encoding="utf-8") as log, \
         subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as coordinator:
        swarm = None
        try:
            address = coordinator.stdout.readline().split()[-1]
            before = memory_bytes(coordinator.pid)
            with subprocess.Popen([SWARM, address, str(agents), str(SLOTS)], env=environment, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True) as swarm:
                say(swarm, "waiting")
                begin, begin_wall = cpu_seconds(coordinator.pid), time.monotonic()
                go_on(swarm)
                told = say(swarm, "told")
                found = {"cpu": cpu_seconds(coordinator.pid) - begin, "wall": time.monotonic() - begin_wall,
                         "memory": memory_bytes(coordinator.pid) - before, "ranks": agents * SLOTS,
                         "messages": told["messages_up"] + told["messages_down"], "bytes": told["bytes_up"] + told["bytes_down"]}
                for moment in ("ready", "over"):
                    go_on(swarm)
                    say(swarm, moment)
                go_on(swarm)
                if swarm.wait(60) != 0:
                    raise RuntimeError("the swarm failed")
            if coordinator.wait(60) != 0:
                raise RuntimeError(f"the coordinator ended with {coordinator.returncode}")
            return found
        finally:
            for process in (swarm, coordinator):
                if process is not None and process.poll() is None:
                    process.kill()


def panel(x, title, unit, points, scale):
    """One plot of the SVG: points over ranks, both axes from their least to their greatest decade or from 0."""
    import math
    width, height, top = 250, 170, 40
    most = max(value for _, value in points) * 1.15 or 1
    ranks_max = math.log2(points[-1][0] / points[0][0]) or 1
    place = [(x + 45 + width * math.log2(ranks / points[0][0]) / ranks_max, top + height - height * value / most) for ranks, value in points]
    text = [f'<text x="{x + 45}" y="22" font-weight="bold">{title}</text>',
            f'<path d="M{x + 45} {top}V{top + height}H{x + 45 + width}" fill="none" stroke="#888"/>',
            f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in place)}" fill="none" stroke="#1f6fb2" stroke-width="2"/>']
    for (ranks, value), (a, b) in zip(points, place):
        text.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="#1f6fb2"/>')
        text.append(f'<text x="{a:.1f}" y="{b - 8:.1f}" text-anchor="middle">{value / scale:.3g}{unit}</text>')
        text.append(f'<text x="{a:.1f}" y="{top + height + 16}" text-anchor="middle">{ranks:,}</text>')
    return text


def write_plot(results, path):
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" width="990" height="260" viewBox="0 0 990 260" font-family="sans-serif" font-size="11">',
             '<rect width="990" height="260" fill="white"/>']
    lines += panel(0, "CPU time of the start of a generation", " s", [(r["ranks"], r["cpu"]) for r in results], 1)
    lines += panel(330, "messages for each rank", "", [(r["ranks"], r["messages"] / r["ranks"]) for r in results], 1)
    lines += panel(660, "memory for each rank", " KiB", [(r["ranks"], r["memory"] / r["ranks"]) for r in results], 1024)
    lines += ['<text x="495" y="248" text-anchor="middle">ranks (8 on each simulated node)</text>', "</svg>"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--agents", type=int)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="ddprun-scale-") as folder:
        for agents in [options.agents] if options.agents else AGENTS:
            found = measure(agents, folder)
            results.append(found)
            ranks = found["ranks"]
            reach = "–"
            if agents == AGENTS[-1]:
                reach = "reached" if found["cpu"] < CPU_SECONDS_REACH else f"missed: {CPU_SECONDS_REACH} s"
            print_row([f"coordinator, {ranks:,} ranks of {agents:,} agents: start of a generation"], "–",
                      f"{found['cpu']:.3f} s of CPU in {found['wall']:.2f} s; for each rank {found['messages'] / ranks:.2f} messages, "
                      f"{found['bytes'] / ranks:.0f} bytes, {found['memory'] / ranks / 1024:.1f} KiB", reach)
    if options.plot:
        write_plot(results, ROOT / "docs" / "scale.svg")
    return 0


sys.exit(main())
