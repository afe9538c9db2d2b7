"""What scripts/bench_images.py compares with: torchvision's ImageFolder and transforms (Pillow) under PyTorch's DataLoader.

    peer_images.py make DIR COUNT              writes COUNT pictures, 500×375, in two classes of DIR/train
    peer_images.py load DIR WORKERS BATCH EPOCHS   prints: pictures, seconds, processor seconds of loader and workers,
                                               of EPOCHS epochs after a first that is not counted
"""

import os
import pathlib
import sys
import time

import numpy as np
import torch
from PIL import Image
from torchvision import datasets, transforms

WIDTH, HEIGHT = 500, 375
TICKS = os.sysconf("SC_CLK_TCK")


def picture(seed):
    """Soft waves of colour, discs with hard edges, and noise: about the detail, so about the bytes, of photographs."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    values = np.full((HEIGHT, WIDTH, 3), 128.0)
    for _ in range(12):
        waves = random.normal(size=2) * 0.05
        values += random.normal(size=3) * 30 * np.sin(waves[0] * columns + waves[1] * rows + random.random() * 6)[..., None]
    for _ in range(15):
        inside = (columns - random.integers(WIDTH)) ** 2 + (rows - random.integers(HEIGHT)) ** 2 < random.integers(5, 90) ** 2
        values[inside] = 128 + random.normal(size=3) * 60
    return np.clip(values + random.normal(size=values.shape) * 8, 0, 255).astype(np.uint8)


def make(folder, count):
    for number in range(count):
        target = pathlib.Path(folder) / "train" / f"class{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(number)).save(target / f"{number:05}.jpg", quality=85 + number % 6)


def processor_seconds(pids):
    total = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def load(folder, workers, batch, epochs):
    torch.set_num_threads(1)
    steps = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    dataset = datasets.ImageFolder(pathlib.Path(folder) / "train", steps)
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch, num_workers=workers, persistent_workers=True)
    sum(len(targets) for _, targets in loader)
    pids = [os.getpid(), *(process.pid for process in loader._iterator._workers)]
    processor, begin = processor_seconds(pids), time.perf_counter()
    pictures = sum(len(targets) for _ in range(epochs) for _, targets in loader)
    print(pictures, time.perf_counter() - begin, processor_seconds(pids) - processor)


if sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]))
else:
    load(sys.argv[2], *map(int, sys.argv[3:6]))
