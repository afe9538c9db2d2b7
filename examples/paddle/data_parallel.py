"""Data parallel training with Paddle on CPUs: a small regression, gradients summed over Gloo.

Knows nothing of its launcher: python -m paddle.distributed.launch --nproc_per_node 2 data_parallel.py
"""

import paddle
import paddle.distributed as dist
from paddle import nn


def main():
    paddle.device.set_device("cpu")
    dist.init_parallel_env()
    rank, world = dist.get_rank(), dist.get_world_size()
    paddle.seed(3)
    model = paddle.DataParallel(nn.Linear(4, 1))
    optimizer = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.parameters())
    truth = paddle.to_tensor([[1.0], [-2.0], [3.0], [0.5]])
    paddle.seed(100 + rank)
    for step in range(1, 41):
        x = paddle.randn([32, 4])
        loss = nn.functional.mse_loss(model(x), x @ truth)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {float(loss):.6f}", flush=True)
    total = paddle.to_tensor([float(rank)])
    dist.all_reduce(total)
    print(f"rank {rank} of {world}, sum of the ranks {float(total[0]):.0f}", flush=True)


main()
