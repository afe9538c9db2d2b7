"""Makes small data of each kind for the configurations in examples/, with something to learn in them.

make_example_data.py FOLDER: cifar10, pictures, text, and module.pt where this Python has torch.
Always the same bytes. What is there is left as it is.
"""

import pathlib
import random
import struct
import sys
import zlib

CLASSES = 10
WORDS = "the model reads a batch and then every rank adds its gradients before the next step of the optimizer".split()


def picture(label, channels, side, draws):
    """Planes of bytes: stripes whose direction, width and colour are the class's, under noise."""
    planes = bytearray()
    for channel in range(channels):
        strength = 40 + 30 * ((label * 7 + channel * 3) % 6)
        for y in range(side):
            for x in range(side):
                place = x * (label % 3) + y * (label % 4 + 1)
                light = strength if place // (2 + label // 3) % 2 else 20
                planes.append(min(255, light + draws.randrange(40)))
    return bytes(planes)


def write_cifar10(folder, records=64, test_records=32):
    draws = random.Random(1)
    for name, count in [(f"data_batch_{i}.bin", records) for i in range(1, 6)] + [("test_batch.bin", test_records)]:
        rows = []
        for _ in range(count):
            label = draws.randrange(CLASSES)
            rows.append(bytes([label]) + picture(label, 3, 32, draws))
        (folder / name).write_bytes(b"".join(rows))


def png(side, planes):
    """An RGB picture; each row begins with the byte of filter 0."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    size = side * side
    rows = bytearray()
    for y in range(side):
        rows.append(0)
        for x in range(side):
            rows += bytes(planes[channel * size + y * side + x] for channel in range(3))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")


def write_pictures(folder):
    draws = random.Random(2)
    for split, count in (("train", 12), ("val", 4)):
        for label, name in enumerate(("flat", "leaning", "steep", "wide")):
            below = folder / split / name
            below.mkdir(parents=True)
            for number in range(count):
                (below / f"{number}.png").write_bytes(png(48, picture(label, 3, 48, draws)))


def write_text(folder, words=20000):
    """A text of a few words as bytes, each followed by one of two others; 256 ends it, as in `ddprun tokens`."""
    draws = random.Random(3)
    word, text = 0, []
    for _ in range(words):
        text.append(WORDS[word])
        word = (word * 2 + draws.randrange(2)) % len(WORDS)
    tokens = list(" ".join(text).encode()) + [256]
    cut = len(tokens) * 9 // 10
    for name, part in (("train.bin", tokens[:cut]), ("test.bin", tokens[cut:])):
        (folder / name).write_bytes(struct.pack(f"<{len(part)}H", *part))


def write_module(path):
    try:
        import torch
    except ImportError:
        print("no module.pt: this Python has no torch (examples/torchscript.cfg needs it)", file=sys.stderr)
        return
    torch.manual_seed(4)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
                                 torch.nn.Flatten(), torch.nn.Linear(256, CLASSES))
    torch.jit.script(module).save(str(path))


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    root = pathlib.Path(sys.argv[1])
    for name, write in (("cifar10", write_cifar10), ("pictures", write_pictures), ("text", write_text)):
        folder = root / name
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        write(folder)
    if not (root / "module.pt").exists():
        write_module(root / "module.pt")
    print(f"{root}: cifar10, pictures, text{', module.pt' if (root / 'module.pt').exists() else ''}")


if __name__ == "__main__":
    main()
