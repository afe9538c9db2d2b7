"""Plain DistributedDataParallel: a small convolutional net on synthetic images, a snapshot every few steps.

Knows nothing of its launcher: torchrun --nproc-per-node 4 ddp.py, or ddprun --nproc 4 ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(samples):
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(samples, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (samples,), generator=generator)
    for region in range(10):  # each label lights up a region of its own
        images[labels == region, 0, 2 * region + 3 : 2 * region + 6] += 1.0
    return TensorDataset(images, labels)


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 13 * 13, 10)
    )


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--snapshot", default="snapshot.pt")
    parser.add_argument("--save-every", type=int, default=5)
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if not cuda:
        torch.set_num_threads(1)

    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    if os.path.exists(options.snapshot):
        state = torch.load(options.snapshot, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)

    data = make_data(2048)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler, drop_last=True)
    while step < options.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for index, (images, labels) in enumerate(loader):
            if index < skip:
                continue
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % options.save_every == 0:
                save(options.snapshot, model.module, optimizer, step)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break
    if rank == 0:
        save(options.snapshot, model.module, optimizer, step)
        total = sum(p.double().sum().item() for p in model.parameters())
        print(f"done at step {step}, sum of the weights {total:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
