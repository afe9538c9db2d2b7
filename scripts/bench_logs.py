"""Throughput of worker output to log files on tmpfs: ddprun, torchrun with --redirects 3 (the workers write to the
files themselves) and --tee 3 (it also copies them to the console), and the workers alone with `> file` as the ceiling.

Each rank notes when it began to write and when it was done; the time counted is from the first beginning to the moment
at which all bytes are in the files. Standard output goes to /dev/null everywhere.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from bench_report import Sample, pins, print_row
from job_run import BIN, DDPRUN, ROOT

WORKERS = 4
LINE = b"step 12345 loss 0.123456 lr 0.001000 samples/s 12345.6 and what else a training loop may say about itself\n"
TIMEOUT_SECONDS = 120
WORKER = """
import os, sys, time
total, block_bytes, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
line = %r
block = (line * (block_bytes // len(line) + 1))[:block_bytes]
begun = time.time()
left = total
while left > 0:
    left -= os.write(1, block[:left])
with open(os.path.join(folder, "begun" + os.environ.get("RANK", str(os.getpid()))), "w") as file:
    file.write(repr(begun))
""" % LINE


class Bench:
    def __init__(self, folder, total, block, torch_python):
        self.torch_python = torch_python
        self.folder = pathlib.Path(folder)
        self.worker = self.folder / "worker.py"
        self.worker.write_text(WORKER, encoding="utf-8")
        self.each = total // WORKERS
        self.block = block
        self.notes = self.folder / "notes"
        self.out = self.folder / "out"

    def program(self):
        return [str(self.worker), str(self.each), str(self.block), str(self.notes)]

    def measure(self, start):
        """MB/s of one run. start() begins it and returns the processes to wait for."""
        for path in (self.notes, self.out):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        processes = start()
        try:
            for process in processes:
                if process.wait(max(0.1, deadline - time.monotonic())) != 0:
                    raise SystemExit(f"{process.args} ended with {process.returncode}")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        logs = [path for path in self.out.rglob("*") if path.is_file() and path.stat().st_size >= self.each]
        if len(logs) < WORKERS or sum(path.stat().st_size for path in logs) != self.each * WORKERS:
            raise SystemExit(f"the files hold {[path.stat().st_size for path in logs]} bytes, not {WORKERS} × {self.each}")
        begun = min(float(path.read_text(encoding="utf-8")) for path in self.notes.iterdir())
        # The last change of a file is when its last byte arrived.
        ended = max(path.stat().st_mtime for path in logs)
        return self.each * WORKERS / (ended - begun) / 1e6

    def alone(self):
        processes = []
        for rank in range(WORKERS):
            with open(self.out / f"rank{rank}", "wb") as file:
                processes.append(subprocess.Popen([sys.executable, *self.program()], stdout=file,
                                                  env={**os.environ, "RANK": str(rank)}))
        return processes

    def ddprun(self, *options):
        command = [DDPRUN, "--nproc", str(WORKERS), "--run-dir", str(self.out / "run"), *options, "--", sys.executable,
                   *self.program()]
        return [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)]

    def torchrun(self, *options):
        command = [self.torch_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS), "--log-dir",
                   str(self.out), *options, *self.program()]
        return [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=4_000_000_000, help="of all workers together")
    parser.add_argument("--block", type=int, default=65536, help="bytes of one write of a worker")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--torch-python", default=str(ROOT / ".deps" / "venv" / "bin" / "python"),
                        help="a Python that has torch, for torchrun")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="ddprun-bench-logs-", dir="/dev/shm")
    try:
        bench = Bench(folder, arguments.bytes, arguments.block, arguments.torch_python)
        has_torchrun = os.path.exists(arguments.torch_python)
        variants = {"alone": bench.alone, "ddprun quiet": lambda: bench.ddprun("--redirects", "3"), "ddprun": bench.ddprun}
        if has_torchrun:
            variants["torchrun --redirects 3"] = lambda: bench.torchrun("--redirects", "3")
            variants["torchrun --tee 3"] = lambda: bench.torchrun("--tee", "3")
        bench.measure(bench.alone)  # memory that is touched for the first time is slower
        rates = {name: [] for name in variants}
        for _ in range(arguments.runs):
            for name, start in variants.items():
                rates[name].append(bench.measure(start))
        samples = {name: Sample(values) for name, values in rates.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    versions = f"torch {pins()['TORCH_VERSION']}" if has_torchrun else ""
    texts = {name: sample.text("MB/s", 0) for name, sample in samples.items()}
    for ours, peer in (("ddprun quiet", "torchrun --redirects 3"), ("ddprun", "torchrun --tee 3")):
        peers = [f"`program > file`: {texts['alone']}"]
        if peer in samples:
            peers.insert(0, f"{peer}: {texts[peer]}")
        options = "--redirects 3 " if ours == "ddprun quiet" else ""
        base = samples.get(peer, samples["alone"]).median
        print_row(f"{BIN}/ddprun --nproc {WORKERS} {options}-- python worker.py "
                  f"({arguments.bytes / 1e9:g} GB to tmpfs, writes of {arguments.block} bytes)",
                  "; ".join(peers), texts[ours], f"{samples[ours].median / base:.2f}", versions)
    return 0


sys.exit(main())
