"""The peer of bench_recovery: an ordinary PyTorch DDP job over Gloo that checkpoints every step. The last rank kills
itself with SIGKILL after step 50 of its first life; rank 0 prints how long it took until the next step was done.

Run by torchrun with one argument: a folder for checkpoint and marker.
"""

import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

KILL_AFTER_STEP = 50
STEPS = 100


def main():
    folder = pathlib.Path(sys.argv[1])
    checkpoint, killed_at = folder / "checkpoint.pt", folder / "killed_at"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 13 * 13, 10))
    done = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        done = state["step"]
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    for step in range(done + 1, STEPS + 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(images), labels).backward()
        optimizer.step()
        if rank == 0:
            if killed_at.exists() and step == done + 1:
                print(f"recovered after {time.time() - float(killed_at.read_text()):.3f} s", flush=True)
            temporary = checkpoint.with_suffix(".tmp")
            torch.save({"model": model.state_dict(), "step": step}, temporary)
            os.replace(temporary, checkpoint)
        dist.barrier()
        if step == KILL_AFTER_STEP and rank == dist.get_world_size() - 1 and not killed_at.exists():
            killed_at.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


main()
