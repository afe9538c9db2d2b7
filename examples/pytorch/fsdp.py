"""Sharded parameters (fully_shard), a distributed checkpoint (one file per rank), torch.compile where asked for.

Knows nothing of its launcher: torchrun --nproc-per-node 2 fsdp.py
"""

import argparse
import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def newest(folder):
    steps = [int(name[5:]) for name in os.listdir(folder) if name.startswith("step-")] if os.path.isdir(folder) else []
    return max(steps, default=0)


def save(folder, model, optimizer, step):
    target = os.path.join(folder, f"step-{step}")
    model_state, optimizer_state = get_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        shutil.rmtree(os.path.join(folder, "writing"), ignore_errors=True)
        os.makedirs(folder, exist_ok=True)
    dist.barrier()
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=os.path.join(folder, "writing"))
    dist.barrier()
    if dist.get_rank() == 0:
        os.rename(os.path.join(folder, "writing"), target)
    dist.barrier()


def load(folder, model, optimizer, step):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=os.path.join(folder, f"step-{step}"))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh(device, (dist.get_world_size(),))

    torch.manual_seed(5)
    model = Net().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if options.compile:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = newest(options.folder)
    if step:
        load(options.folder, model, optimizer, step)
        if dist.get_rank() == 0:
            print(f"resumed at step {step}", flush=True)
    while step < options.steps:
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(32, 64, generator=generator).to(device)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % options.save_every == 0 or step == options.steps:
            save(options.folder, model, optimizer, step)
    total = torch.tensor(sum(p.full_tensor().double().sum().item() for p in model.parameters()))
    if dist.get_rank() == 0:
        print(f"done at step {step}, sum of the weights {total.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
