"""An ordinary PyTorch DDP job (Gloo, or NCCL where GPUs are asked for) that checkpoints every step. The last rank kills
itself with SIGKILL after step 50 of its first life; rank 0 prints how long it took until the next step was done.

Run by any launcher with one argument: a folder for checkpoint and marker; and `cuda` for GPUs.
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
    cuda = sys.argv[2:] == ["cuda"]
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 13 * 13, 10))
    model.to(device)
    done = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        done = state["step"]
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(64, 1, 28, 28, device=device), torch.randint(0, 10, (64,), device=device)
    for step in range(done + 1, STEPS + 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(images), labels).backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()
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
