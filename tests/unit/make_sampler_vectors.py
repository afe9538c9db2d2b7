"""Prints what torch.utils.data.DistributedSampler gives, for parallel_sampler_test.

One case a line: samples replicas shuffle drop_last seed epoch | indices of rank 0 | indices of rank 1 | …
Long lists are given by their length and a hash of them (FNV-1a over 64-bit little-endian numbers): #<length> <hash>.
    python3 tests/unit/make_sampler_vectors.py > tests/unit/sampler_vectors.txt
"""

import itertools
import struct

from torch.utils.data.distributed import DistributedSampler

LISTED_MAX = 40


def fnv(numbers):
    value = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(numbers)}q", *numbers):
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value


def text(indices):
    if len(indices) > LISTED_MAX:
        return f"#{len(indices)} {fnv(indices)}"
    return " ".join(map(str, indices))


def main():
    small = itertools.product((1, 2, 7, 10, 101), (1, 2, 3, 4, 16), (0, 1), (0, 1), (0, 1024), (0, 3))
    large = [(60000, 4, 1, 0, 1024, 0), (60000, 4, 1, 1, 1024, 1), (60000, 7, 1, 0, 7, 5),
             (1281167, 8, 1, 0, (1 << 40) + 5, 2), (50000, 3, 1, 1, (1 << 32) - 1, 0),
             (50000, 3, 1, 1, (1 << 32) - 1, 1)]
    for samples, replicas, shuffle, drop_last, seed, epoch in itertools.chain(small, large):
        ranks = []
        for rank in range(replicas):
            sampler = DistributedSampler(range(samples), replicas, rank, bool(shuffle), seed, bool(drop_last))
            sampler.set_epoch(epoch)
            ranks.append(text(list(sampler)))
        print(samples, replicas, shuffle, drop_last, seed, epoch, "|", " | ".join(ranks))


if __name__ == "__main__":
    main()
