"""An elastic training script: @record for its errors, a data loader with worker processes, a snapshot each epoch.

Knows nothing of its launcher: torchrun --nproc-per-node 2 --max-restarts 3 elastic.py
"""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Line(Dataset):
    """Points of y = 3x - 1 with a little noise."""

    def __init__(self, samples):
        generator = torch.Generator().manual_seed(11)
        self.x = torch.randn(samples, 1, generator=generator)
        self.y = 3 * self.x - 1 + 0.01 * torch.randn(samples, 1, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Trainer:
    def __init__(self, options):
        self.options = options
        self.rank = dist.get_rank()
        self.model = torch.nn.Linear(1, 1)
        torch.nn.init.zeros_(self.model.weight)
        torch.nn.init.zeros_(self.model.bias)
        self.epoch = 0
        if os.path.exists(options.snapshot):
            state = torch.load(options.snapshot)
            self.model.load_state_dict(state["model"])
            self.epoch = state["epoch"]
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        print(f"rank {self.rank} begins at epoch {self.epoch}, restart {restarts}", flush=True)
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1)
        data = Line(512)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=16, sampler=self.sampler, num_workers=1)

    def run_epoch(self):
        self.sampler.set_epoch(self.epoch)
        total = 0.0
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.ddp(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        self.epoch += 1
        if self.rank == 0:
            print(f"epoch {self.epoch} loss {total / len(self.loader):.6f}", flush=True)
            torch.save({"model": self.model.state_dict(), "epoch": self.epoch}, self.options.snapshot + ".tmp")
            os.replace(self.options.snapshot + ".tmp", self.options.snapshot)
        dist.barrier()

    def run(self):
        while self.epoch < self.options.epochs:
            self.run_epoch()
            if self.options.fail_at_epoch == self.epoch and self.rank == dist.get_world_size() - 1:
                marker = self.options.snapshot + ".failed"
                if not os.path.exists(marker) or self.options.fail_always:
                    open(marker, "w").close()
                    raise ValueError(f"the sample of epoch {self.epoch} cannot be read")


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--snapshot", default="elastic.pt")
    parser.add_argument("--fail-at-epoch", type=int, default=0, help="the last rank raises an error then, once")
    parser.add_argument("--fail-always", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Trainer(options).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
