"""The peer of bench_training.py: the same job as an ordinary PyTorch DDP program over Gloo, run by torchrun. One thread a rank; the
tensors are loaded and normalised before the clock starts.

  peer_training.py MODEL KIND FOLDER BATCH WARMUP STEPS [fused]

`fused`: fused kernels of the optimizer and gradients as views of the buckets, which are not PyTorch's defaults. Rank 0 prints
`seconds per step: …`; the clock runs from the end of the warm-up to the end of the last step on all ranks.
"""

import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/python"))
import parity_data  # noqa: E402
import reference_models  # noqa: E402

OPTIONS = {"simple_cnn": {}, "resnet18": {"classes": 10, "stem": "cifar"}}


def batches(size, count):
    """Endless batches of this rank's sample numbers, epoch by epoch."""
    sampler = DistributedSampler(range(count), seed=1024, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        order = torch.tensor(list(sampler))
        for first in range(0, len(order) - size + 1, size):
            yield order[first:first + size]
        epoch += 1


def main():
    name, kind, folder, size, warmup, steps = *sys.argv[1:4], *map(int, sys.argv[4:7])
    fused = sys.argv[7:] == ["fused"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    inputs, targets = parity_data.picture_tensors(kind, folder, "train")
    torch.manual_seed(1024)
    model = reference_models.make(name, **OPTIONS[name])
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=fused)
    if name == "simple_cnn":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=fused or None)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, fused=fused or None)
    source = batches(size, len(targets))
    for step in range(warmup + steps):
        if step == warmup:
            dist.barrier()
            begin = time.perf_counter()
        batch = next(source)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(parallel(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
        loss.item()  # ddprun looks at each step's loss too
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"seconds per step: {(time.perf_counter() - begin) / steps:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
