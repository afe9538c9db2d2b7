"""Makes small data of each kind for the configurations in examples/, with something to learn in them.

make_example_data.py FOLDER: cifar10, pictures (PNG and JPEG), text, and module.pt where this Python has torch.
Always the same bytes. What is there is left as it is.
"""

import math
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


def dct_rows():
    """The rows of the cosine transform of 8 values."""
    return [[math.cos((2 * x + 1) * u * math.pi / 16) / (2 if u else 8 ** 0.5) for x in range(8)] for u in range(8)]


# Of JPEG: the places of a block from low to high frequencies, one step for all of them, and codes of equal length, for the
# simplest tables.
ZIGZAG = sorted(((v, u) for v in range(8) for u in range(8)), key=lambda p: (sum(p), p[0] if sum(p) % 2 else p[1]))
STEP = 6
ROWS = dct_rows()
AC_SYMBOLS = [0x00, 0xF0] + [run << 4 | size for run in range(16) for size in range(1, 11)]
AC_CODES = {symbol: f"{code:08b}" for code, symbol in enumerate(AC_SYMBOLS)}


def block_bits(block, before):
    """The bits of a block of 8 × 8 values around 0, and its mean, from which the next block's is counted."""
    half = [[sum(row[x] * ROWS[u][x] for x in range(8)) for u in range(8)] for row in block]
    numbers = [round(sum(half[y][u] * ROWS[v][y] for y in range(8)) / STEP) for v, u in ZIGZAG]

    def amplitude(value):
        size = abs(value).bit_length()
        return size, f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""
    size, bits = amplitude(numbers[0] - before)
    out, run = [f"{size:04b}", bits], 0
    for value in numbers[1:]:
        if value == 0:
            run += 1
            continue
        out += [AC_CODES[0xF0]] * (run // 16)
        size, bits = amplitude(value)
        out += [AC_CODES[run % 16 << 4 | size], bits]
        run = 0
    return "".join(out + ([AC_CODES[0x00]] if run else [])), numbers[0]


def jpeg(side, planes):
    """A baseline JPEG of an RGB picture whose side is a multiple of 8, in full colour resolution."""
    def segment(marker, data):
        return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data
    pixels = []
    for red, green, blue in zip(*(planes[channel * side * side:(channel + 1) * side * side] for channel in range(3))):
        light = 0.299 * red + 0.587 * green + 0.114 * blue
        pixels.append((light - 128, 0.564 * (blue - light), 0.713 * (red - light)))
    bits, before = [], [0, 0, 0]
    for top in range(0, side, 8):
        for left in range(0, side, 8):
            for part in range(3):
                block = [[pixels[(top + y) * side + left + x][part] for x in range(8)] for y in range(8)]
                some, before[part] = block_bits(block, before[part])
                bits.append(some)
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    data = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")
    frame = struct.pack(">BHHB", 8, side, side, 3) + bytes((1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0))
    return b"".join((b"\xff\xd8", segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
                     segment(0xDB, bytes([0] + [STEP] * 64)), segment(0xC0, frame),
                     segment(0xC4, bytes([0x00, 0, 0, 0, 12] + [0] * 12 + list(range(12)))),
                     segment(0xC4, bytes([0x10] + [0] * 7 + [len(AC_SYMBOLS)] + [0] * 8 + AC_SYMBOLS)),
                     segment(0xDA, bytes((3, 1, 0, 2, 0, 3, 0, 0, 63, 0))), data, b"\xff\xd9"))


def write_pictures(folder):
    draws = random.Random(2)
    for split, count in (("train", 12), ("val", 4)):
        for label, name in enumerate(("flat", "leaning", "steep", "wide")):
            below = folder / split / name
            below.mkdir(parents=True)
            for number in range(count):
                kind, write = (("png", png), ("jpg", jpeg))[number % 2]
                (below / f"{number}.{kind}").write_bytes(write(48, picture(label, 3, 48, draws)))


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
