"""What checkpoints cost: part of the training loop's time that is spent inside checkpoint calls (reference job, a
checkpoint every 10 steps); with --large, the copy and the write of a model of 340 million parameters, beside a plain copy
of as many bytes in memory and a plain sequential write of them with fsync, in turns with the jobs."""

import argparse
import ctypes
import mmap
import os
import sys
import tempfile
import time

from bench_report import Sample, print_row
from job_run import REFERENCE_CONFIG, Job

LOOP_SECONDS_MIN = 60
# BERT-large on short random texts: the model counts here, not the training.
LARGE = ["--nproc", "1", "--set", "model.name=bert", "--set", "model.sequence_length=16", "--set", "data.kind=synthetic",
         "--set", "data.batch_size=1", "--set", "data.samples=64", "--set", "train.evaluate=false",
         "--set", "checkpoint.every_steps=3", "--set", "train.steps=6"]
PARAMETERS_MIN = 330e6
CHUNK_BYTES = 4 << 20
COPY_BYTES = 1 << 29  # buffers of the plain copy; far more than any cache, and copied as often as needed


def filled(size):
    """Memory that is there: every page has been written to."""
    memory = mmap.mmap(-1, size)
    for offset in range(0, size, mmap.PAGESIZE):
        memory[offset] = 1
    return memory


def copy_seconds(size):
    source, target = filled(COPY_BYTES), filled(COPY_BYTES)
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (target, source)]
    seconds = 0.0
    while size > 0:
        part = min(size, COPY_BYTES)
        begin = time.perf_counter()
        ctypes.memmove(addresses[0], addresses[1], part)
        seconds += time.perf_counter() - begin
        size -= part
    return seconds


def write_seconds(size):
    """As dd conv=fsync does it, on the file system that run folders of these jobs lie on."""
    data = memoryview(filled(CHUNK_BYTES))
    with tempfile.NamedTemporaryFile() as file:
        begin = time.perf_counter()
        while size > 0:
            size -= os.write(file.fileno(), data[:min(size, CHUNK_BYTES)])
        os.fsync(file.fileno())
        return time.perf_counter() - begin


def run_job(arguments):
    with Job(arguments, timeout_seconds=600) as job:
        code, result = job.wait_end()
    if code != 0:
        sys.exit(f"the job ended with {code}: {result}\n{job.run_dir}")
    return {key: float(value) for key, value in result["metrics"].items()}, job.events


def bench_calls(epochs):
    arguments = ["--nproc", "4", "--set", "checkpoint.every_steps=10", "--set", f"train.epochs={epochs}",
                 REFERENCE_CONFIG]
    metrics, events = run_job(arguments)
    committed = sum(event["event"] == "checkpoint_committed" for event in events)
    skipped = sum(event["event"] == "checkpoint_skipped" for event in events)
    inside, loop = metrics["checkpoint_seconds"], metrics["loop_seconds"]
    if loop < LOOP_SECONDS_MIN:
        sys.exit(f"the loop took {loop:.1f} s; the figure asks for {LOOP_SECONDS_MIN} s: raise --epochs")
    print_row(["build/bin/ddprun", *arguments], "–",
              f"{100 * inside / loop:.2f} % ({inside:.3f} s of {loop:.1f} s; {committed} committed, {skipped} skipped)",
              "–")


def bench_large(rounds, optimizer):
    arguments = [*LARGE, "--set", f"train.optimizer={optimizer}", REFERENCE_CONFIG]
    size, copies, stalls, disks, writes = 0, [], [], [], []
    for _ in range(rounds):
        metrics, _ = run_job(arguments)
        size = int(metrics["checkpoint_bytes"])
        if size < 4 * PARAMETERS_MIN:
            sys.exit(f"a checkpoint of {size} bytes is not of a model of {PARAMETERS_MIN:.0f} parameters")
        stalls.append(metrics["checkpoint_stall_seconds"])
        copies.append(copy_seconds(size))
        writes.append(size / metrics["checkpoint_write_seconds"] / 1e6)
        disks.append(size / write_seconds(size) / 1e6)
    for what, unit, peer, ours in [("copy in memory", "s", copies, stalls), ("write with fsync", "MB/s", disks, writes)]:
        peer, ours = Sample(peer), Sample(ours)
        print_row(["build/bin/ddprun", *arguments], f"plain {what} of {size / 1e9:.2f} GB: {peer.text(unit)}",
                  ours.text(unit), f"{ours.median / peer.median:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--optimizer", default="adamw", help="sgd: weights alone; adamw: three times as much")
    options = parser.parse_args()
    if options.large:
        bench_large(options.rounds, options.optimizer)
    else:
        bench_calls(options.epochs)
    return 0


sys.exit(main())
