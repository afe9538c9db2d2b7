"""Shows that the trainer learns: ResNet-18 on data in CIFAR-10's format, and a GPT on real text.

learning_curves.py FOLDER [--device cpu|cuda] [--only resnet18|gpt]: makes the data in FOLDER, trains, and leaves the
run folders FOLDER/run-resnet18_cifar and FOLDER/run-gpt. scripts/learning_curves.sh draws them into docs/.
The images are Fashion-MNIST, padded to 32 × 32 and given three equal channels: CIFAR-10 itself has to be downloaded. The text is
the source code of Python's own standard library, as bytes. Exits 1 when a model has not learnt.
"""

import argparse
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
DDPRUN = pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build/bin")) / "ddprun"
FASHION_MNIST = pathlib.Path(os.environ.get("DDPRUN_DATA", "/usr/share/datasets/fashion-mnist"))
PIXELS, SIDE, PADDING = 28 * 28, 28, 2
TEXT_BYTES = 8 << 20


def read_idx(name, header_bytes):
    with gzip.open(FASHION_MNIST / name, "rb") as file:
        return file.read()[header_bytes:]


def cifar_record(label, image):
    """One byte for the class, then red, green and blue planes of 32 × 32."""
    edge = bytes(SIDE + 2 * PADDING)
    rows = [bytes(PADDING) + image[r * SIDE:(r + 1) * SIDE] + bytes(PADDING) for r in range(SIDE)]
    plane = edge * PADDING + b"".join(rows) + edge * PADDING
    return bytes([label]) + plane * 3


def make_images(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, names in (("train", [f"data_batch_{i}.bin" for i in range(1, 6)]), ("t10k", ["test_batch.bin"])):
        images = read_idx(f"{prefix}-images-idx3-ubyte.gz", 16)
        labels = read_idx(f"{prefix}-labels-idx1-ubyte.gz", 8)
        for number, name in enumerate(names):  # 10,000 records a file, as CIFAR-10 has them
            records = (cifar_record(labels[i], images[i * PIXELS:(i + 1) * PIXELS])
                       for i in range(number * 10000, (number + 1) * 10000))
            (folder / name).write_bytes(b"".join(records))


def make_text(folder):
    folder.mkdir(parents=True, exist_ok=True)
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    text, size = [], 0
    for path in sorted(library.glob("*.py")) + sorted(library.glob("[a-z]*/*.py")):
        if "test" in path.parts[-2] or "site-packages" in path.parts:
            continue
        text.append(path.read_bytes())
        size += len(text[-1])
        if size >= TEXT_BYTES:
            break
    source = folder / "library.txt"
    source.write_bytes(b"".join(text))
    for old in folder.glob("*.bin"):
        old.unlink()
    subprocess.run([DDPRUN, "tokens", source, "-o", folder, "--test-fraction", "0.1"], check=True)


def train(name, folder, device, settings):
    run = folder / f"run-{name}"
    shutil.rmtree(run, ignore_errors=True)
    arguments = [DDPRUN, "--nproc", "1", "--device", device, "--run-dir", run, ROOT / f"examples/{name}.cfg"]
    for setting in settings:
        arguments += ["--set", setting]
    subprocess.run(arguments, check=True)
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    print(name, metrics)
    return metrics


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", choices=["resnet18", "gpt"])
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    good = True
    if options.only != "gpt":
        make_images(options.folder / "images")
        steps = 3900 if on_gpu else 300
        metrics = train("resnet18_cifar", options.folder, options.device,
                        [f"data.dir={options.folder.absolute() / 'images'}", f"train.steps={steps}", "data.batch_size=128",
                         f"train.evaluate_every_steps={steps // 10}", "train.schedule=cosine", "log.every_steps=10"])
        good &= metrics["test_accuracy"] > (0.92 if on_gpu else 0.7)
    if options.only != "resnet18":
        make_text(options.folder / "text")
        steps = 3000 if on_gpu else 300
        metrics = train("gpt", options.folder, options.device,
                        [f"data.dir={options.folder.absolute() / 'text'}", f"train.steps={steps}",
                         f"train.evaluate_every_steps={steps // 10}", "train.schedule=cosine", "log.every_steps=10"])
        good &= metrics["test_loss"] < (1.6 if on_gpu else 2.8)  # 5.55 is chance: ln 257
    sys.exit(0 if good else "a model has not learnt")


if __name__ == "__main__":
    main()
