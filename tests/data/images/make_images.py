"""Makes the pictures of this folder and expected.txt: what Pillow and torchvision make of them.

    .deps/torchvision/bin/python tests/data/images/make_images.py      (scripts/bench_images.sh makes that environment)

Lines of expected.txt:
    decoded NAME WIDTH HEIGHT CRC            zlib.crc32 of open(NAME).convert("RGB"), row by row
    scaled NAME LEFT TOP WIDTH HEIGHT SIDE FLIP BYTES FLOATS
                                             resized_crop to SIDE x SIDE (and hflip): crc32 of its bytes, row by row, and
                                             of the float32 planes after ToTensor and Normalize with ImageNet's figures
    centered NAME SHORTER SIDE BYTES         Resize(SHORTER), CenterCrop(SIDE): crc32 of the bytes
    crops WIDTH HEIGHT AREA RATIO LEFT TOP   RandomResizedCrop.get_params, means of 200,000 draws: part of the area,
                                             logarithm of width / height, left / (WIDTH - width), top / (HEIGHT - height)
"""

import math
import pathlib
import struct
import zlib

import numpy as np
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import functional

FOLDER = pathlib.Path(__file__).resolve().parent
DRAWS = 200_000


def picture(width, height, seed):
    """Soft colours, hard edges and a little noise: what photographs are made of."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    values = np.full((height, width, 3), 128.0)
    for _ in range(6):
        waves = random.normal(size=2) * 0.08
        values += random.normal(size=3) * 30 * np.sin(waves[0] * columns + waves[1] * rows + random.random() * 6)[..., None]
    for _ in range(5):
        inside = (columns - random.integers(width)) ** 2 + (rows - random.integers(height)) ** 2 < random.integers(20, 400)
        values[inside] = random.integers(0, 256, 3)
    return np.clip(values + random.normal(size=values.shape) * 4, 0, 255).astype(np.uint8)


def write_png(name, width, height, depth, colour, data, interlaced=False):
    """What Pillow does not write: 2 and 16 bits a channel, Adam7."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    text = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")
    (FOLDER / name).write_bytes(text)


def rows_of(pixels):
    """Rows without any filter."""
    return b"".join(b"\0" + row.tobytes() for row in pixels)


def adam7(pixels):
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    parts = [pixels[top::down, left::right] for left, top, right, down in passes]
    return b"".join(rows_of(part) for part in parts if part.size)


def make_pictures():
    """{name: what it holds, or None where Pillow is to say}"""
    pixels = picture(67, 41, 1)
    image = Image.fromarray(pixels)
    grey16 = np.asarray(image.convert("L")).astype(np.uint16) * 257 + 60
    expected = {}

    def save(name, saved, **options):
        saved.save(FOLDER / name, **options)
        expected[name] = None

    for name, sampling in (("444", 0), ("422", 1), ("420", 2)):
        save(f"rgb_{name}.jpg", image, quality=88, subsampling=sampling)
    save("progressive.jpg", image, quality=88, progressive=True)
    save("restarts.jpg", image, quality=88, restart_marker_blocks=2)
    save("grey.jpg", image.convert("L"), quality=88)
    save("cmyk.jpg", image.convert("CMYK"), quality=88)
    save("rgb.png", image)
    save("rgba.png", Image.fromarray(np.dstack([pixels, pixels[..., :1]])))
    save("grey.png", image.convert("L"))
    save("grey_alpha.png", image.convert("LA"))
    save("grey1.png", image.convert("1"))
    save("palette.png", image.quantize(64))
    save("palette4.png", image.quantize(9))
    save("palette_transparent.png", image.quantize(64), transparency=3)
    write_png("rgb16.png", 67, 41, 16, 2, rows_of((pixels.astype(np.uint16) * 257 - 100).astype(">u2")))
    write_png("interlaced.png", 67, 41, 8, 2, adam7(pixels), interlaced=True)
    two_bits = (np.asarray(image.convert("L")) >> 6)[:, :64].reshape(41, 16, 4)
    write_png("grey2.png", 64, 41, 2, 0, rows_of((two_bits << np.array([6, 4, 2, 0])).sum(axis=2).astype(np.uint8)))
    expected.update({"rgb16.png": None, "interlaced.png": None, "grey2.png": None})
    # Pillow cuts 16 bits of grey at 255, so that nearly all becomes white; the upper eight are the picture.
    write_png("grey16.png", 67, 41, 16, 0, rows_of(grey16.astype(">u2")))
    expected["grey16.png"] = np.repeat((grey16 >> 8).astype(np.uint8)[..., None], 3, axis=2)
    large = Image.fromarray(picture(250, 180, 2))
    save("large.jpg", large, quality=85)
    save("large_progressive.jpg", large, quality=80, progressive=True, subsampling=1)
    save("tall.jpg", Image.fromarray(picture(60, 300, 3)), quality=85)
    return expected


def scaled(name, box, side, flip):
    left, top, width, height = box
    image = Image.open(FOLDER / name).convert("RGB")
    image = functional.resized_crop(image, top, left, height, width, [side, side])
    if flip:
        image = functional.hflip(image)
    normalize = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    floats = normalize(functional.to_tensor(image)).numpy().astype("<f4")
    return (f"scaled {name} {left} {top} {width} {height} {side} {int(flip)} "
            f"{zlib.crc32(np.asarray(image).tobytes()):08x} {zlib.crc32(floats.tobytes()):08x}")


def centered(name, shorter, side):
    image = transforms.CenterCrop(side)(transforms.Resize(shorter)(Image.open(FOLDER / name).convert("RGB")))
    return f"centered {name} {shorter} {side} {zlib.crc32(np.asarray(image).tobytes()):08x}"


def crops(width, height):
    torch.manual_seed(1)
    blank = Image.new("L", (width, height))
    sums = np.zeros(4)
    for _ in range(DRAWS):
        top, left, tall, wide = transforms.RandomResizedCrop.get_params(blank, (0.08, 1.0), (3 / 4, 4 / 3))
        # Where a part fills a side, it has no place to choose: half, as the mean of a free choice.
        sums += [wide * tall / (width * height), math.log(wide / tall),
                 left / (width - wide) if wide < width else 0.5, top / (height - tall) if tall < height else 0.5]
    return f"crops {width} {height} " + " ".join(f"{value:.4f}" for value in sums / DRAWS)


def main():
    lines = []
    for name, known in make_pictures().items():
        pixels = np.asarray(Image.open(FOLDER / name).convert("RGB")) if known is None else known
        lines.append(f"decoded {name} {pixels.shape[1]} {pixels.shape[0]} {zlib.crc32(pixels.tobytes()):08x}")
    for name, box, side, flip in (
            ("large.jpg", (0, 0, 250, 180), 96, False), ("large.jpg", (31, 17, 140, 122), 96, True),
            ("large.jpg", (3, 2, 64, 64), 96, False), ("large.jpg", (200, 100, 50, 80), 64, True),
            ("large.jpg", (5, 7, 96, 96), 96, False), ("large.jpg", (17, 3, 9, 170), 33, True),
            ("large.jpg", (0, 90, 250, 7), 17, False), ("large.jpg", (10, 10, 240, 170), 1, False),
            ("large_progressive.jpg", (77, 41, 101, 99), 64, True), ("tall.jpg", (1, 10, 58, 280), 48, True),
            ("tall.jpg", (0, 0, 60, 300), 64, False), ("interlaced.png", (5, 6, 50, 30), 24, False),
            ("rgb.png", (66, 40, 1, 1), 8, True), ("palette.png", (0, 0, 67, 41), 41, False)):
        lines.append(scaled(name, box, side, flip))
    for name, shorter, side in (("large.jpg", 73, 64), ("large.jpg", 180, 96), ("large.jpg", 256, 224), ("tall.jpg", 32, 32),
                                ("tall.jpg", 57, 48), ("rgb.png", 41, 40), ("rgb.png", 20, 17)):
        lines.append(centered(name, shorter, side))
    for width, height in ((500, 375), (224, 224), (60, 300), (40, 10), (3, 2)):
        lines.append(crops(width, height))
    (FOLDER / "expected.txt").write_text("\n".join(lines) + "\n", encoding="ascii")


main()
