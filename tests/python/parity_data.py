"""Small data sets in the formats that ddprun reads, and the tensors that it makes of them."""

import gzip
import pathlib
import struct

import numpy as np
import torch

CIFAR_FILES = [f"data_batch_{number}.bin" for number in range(1, 6)]


def pictures(count, channels, size, seed):
    """Bytes {count, channels, size, size} and labels 0 … 9: a pattern for each class under noise, so that there is something to learn."""
    random = np.random.default_rng(seed)
    patterns = np.random.default_rng(0).integers(40, 216, (10, channels, size, size))
    labels = random.integers(0, 10, count)
    noise = random.normal(0, 60, (count, channels, size, size))
    return np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8), labels.astype(np.uint8)


def write_idx(folder, count, test_count):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    for prefix, number, seed in (("train", count, 1), ("t10k", test_count, 2)):
        images, labels = pictures(number, 1, 28, seed)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, number, 28, 28) + images.tobytes())
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, number) + labels.tobytes())


def write_cifar10(folder, count, test_count):
    """`count` is spread over the five training files."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    images, labels = pictures(count, 3, 32, 1)
    rows = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
    for name, part in zip(CIFAR_FILES, np.array_split(rows, len(CIFAR_FILES))):
        (folder / name).write_bytes(part.tobytes())
    images, labels = pictures(test_count, 3, 32, 2)
    (folder / "test_batch.bin").write_bytes(np.concatenate([labels[:, None], images.reshape(test_count, -1)], axis=1).tobytes())


def unpacked(path):
    """The bytes of a file, or of its gzipped form beside it."""
    return path.read_bytes() if path.exists() else gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes())


def read_pictures(kind, folder, split):
    """(bytes {count, channels, rows, columns}, labels) of a split "train" or "test"."""
    folder = pathlib.Path(folder)
    if kind == "idx":
        prefix = "train" if split == "train" else "t10k"
        labels = np.frombuffer(unpacked(folder / f"{prefix}-labels-idx1-ubyte")[8:], np.uint8)
        images = np.frombuffer(unpacked(folder / f"{prefix}-images-idx3-ubyte")[16:], np.uint8)
        return images.reshape(len(labels), 1, 28, 28), labels
    names = CIFAR_FILES if split == "train" else ["test_batch.bin"]
    rows = np.concatenate([np.frombuffer((folder / name).read_bytes(), np.uint8).reshape(-1, 3073) for name in names])
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def normalisation(images):
    """For each channel the float that each of the 256 bytes becomes: scaled to 0 … 1, less the mean, over the deviation."""
    table = np.empty((images.shape[1], 256), np.float32)
    for channel in range(images.shape[1]):
        counts = np.bincount(images[:, channel].reshape(-1), minlength=256).astype(np.float64)
        values = np.arange(256) / 255.0
        mean = (counts * values).sum() / counts.sum()
        deviation = np.sqrt((counts * (values - mean) ** 2).sum() / counts.sum())
        table[channel] = (values - mean) / deviation
    return table


def picture_tensors(kind, folder, split):
    """(float inputs, int64 targets), normalised by the training split's own mean and deviation of each channel."""
    images, labels = read_pictures(kind, folder, split)
    table = normalisation(images if split == "train" else read_pictures(kind, folder, "train")[0])
    inputs = np.empty(images.shape, np.float32)
    for channel in range(images.shape[1]):
        np.take(table[channel], images[:, channel], out=inputs[:, channel])
    return torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64))


WRITERS = {"idx": write_idx, "cifar10": write_cifar10}


def load(data, folder, split):
    """(inputs, targets) of a [data] section."""
    return picture_tensors(data["kind"], folder, split)
