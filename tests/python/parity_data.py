"""Small data sets in the formats that ddprun reads, and the tensors that it makes of them."""

import gzip
import pathlib
import struct
import sys

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
from weights_digest import xxh3_128  # noqa: E402

VOCABULARY, TOKENS = 64, 16  # of the models in parity_settings.py
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


def write_tokens(folder, count, test_count):
    """uint16 tokens of windows of TOKENS: a walk in which most steps follow a rule, so that there is something to learn."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    for name, windows, seed in (("train.bin", count, 1), ("test.bin", test_count, 2)):
        random = np.random.default_rng(seed)
        tokens = [0]
        while len(tokens) < windows * TOKENS + 1:
            tokens.append((tokens[-1] * 5 + 3) % VOCABULARY if random.random() < 0.8 else int(random.integers(VOCABULARY)))
        (folder / name).write_bytes(np.array(tokens, "<u2").tobytes())


class Same:
    """A data set that looks alike in every epoch."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.targets)

    def at(self, _):
        return self.inputs, self.targets


class SampleRandom:
    """ddprun's generator of one sample (docs/data.md): SplitMix64 from the XXH3 of seed, purpose, epoch and sample."""

    def __init__(self, seed, epoch, sample):
        words = struct.pack("<5q", seed, 3, epoch, sample, 0)
        self.state = int(xxh3_128(words)[16:], 16)

    def next(self):
        mask = 2 ** 64 - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        value = ((self.state ^ (self.state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    def uniform(self):
        return (self.next() >> 11) * 2.0 ** -53

    def below(self, count):
        return ((self.next() >> 32) * count) >> 32


class Masked:
    """BERT's task: each token is hidden with probability 0.15, and is a target only then; other ones in each epoch."""

    probability, mask_token = 0.15, 1

    def __init__(self, windows, seed):
        self.windows, self.seed = windows, seed

    def __len__(self):
        return len(self.windows)

    def at(self, epoch):
        inputs, targets = self.windows.clone(), torch.full_like(self.windows, -100)
        for sample in range(len(inputs)):
            random = SampleRandom(self.seed, epoch, sample)
            chosen = False
            for place in range(inputs.size(1)):
                if random.uniform() < self.probability:
                    chosen = True
                    self.hide(inputs[sample], targets[sample], place, random)
            if not chosen:
                self.hide(inputs[sample], targets[sample], random.below(inputs.size(1)), random)
        return inputs, targets

    def hide(self, inputs, targets, place, random):
        targets[place] = inputs[place]
        fate = random.uniform()
        if fate < 0.8:
            inputs[place] = self.mask_token
        elif fate < 0.9:
            inputs[place] = random.below(VOCABULARY)


def token_data(folder, split, masked, seed):
    """Windows of TOKENS: for the next token, or for the hidden ones."""
    tokens = torch.from_numpy(np.frombuffer((pathlib.Path(folder) / f"{split}.bin").read_bytes(), "<u2").astype(np.int64))
    if masked:
        return Masked(tokens[:len(tokens) // TOKENS * TOKENS].view(-1, TOKENS), seed)
    count = (len(tokens) - 1) // TOKENS * TOKENS
    return Same(tokens[:count].view(-1, TOKENS), tokens[1:count + 1].view(-1, TOKENS))


WRITERS = {"idx": write_idx, "cifar10": write_cifar10, "tokens": write_tokens}


def load(setting, folder, split):
    """The data set of a setting, as ddprun's loader makes it: at(epoch) gives (inputs, targets)."""
    if setting["data"]["kind"] == "tokens":
        return token_data(folder, split, setting["model"]["name"] == "bert", setting["train"]["seed"])
    return Same(*picture_tensors(setting["data"]["kind"], folder, split))
