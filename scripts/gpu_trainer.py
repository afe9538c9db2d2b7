"""The built-in trainer on the GPUs of this machine; prints a table, exits 1 when a row is bad.

Rows: every model trains in bf16 and fp16; a run that lost a worker ends with the bits of one that did not, dropout, bf16 and
recompute included; recompute and bf16 take less memory; too large a batch says what would help; data that are not finite are
named; with two GPUs: SyncBN, compression, no context of a rank on another's GPU. Figures (images or sequences a second) are
printed beside a peer where PEERS names the folder of its programs. Needs build/bin (DDPRUN_BIN); data are synthetic.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from job_run import Job

PYTHON = os.environ.get("DDPRUN_PYTHON", "python3")
PEERS = os.environ.get("PEERS")
SECONDS_MAX = 240
IMAGES = {"data.kind": "synthetic", "data.samples": 20000, "data.image_size": 64, "model.classes": 100}
TOKENS = {"data.kind": "synthetic", "data.samples": 20000, "model.vocab_size": 1000, "model.sequence_length": 128}
MODELS = {
    "resnet18": {**IMAGES, "train.optimizer": "sgd", "train.momentum": 0.9, "train.lr": 0.05},
    "resnet50": {**IMAGES, "train.optimizer": "sgd", "train.momentum": 0.9, "train.lr": 0.05},
    "bert": {**TOKENS, "model.d_model": 256, "model.heads": 4, "model.layers": 4, "train.optimizer": "adamw", "train.lr": 0.0005},
    "gpt": {**TOKENS, "model.d_model": 256, "model.heads": 4, "model.layers": 4, "train.optimizer": "adamw", "train.lr": 0.0005},
}


def gpu_count():
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


def job(folder, model, ranks=1, **settings):
    """A started run of a model with the given settings (keys with __ for the dot)."""
    keys = {"data.batch_size": 32, "train.steps": 100, "train.evaluate": False, "log.every_steps": 10, "checkpoint.every_steps": 0,
            "data.workers": 2, **MODELS[model], **{name.replace("__", "."): value for name, value in settings.items()}}
    sections = {"model": {"name": model}}
    for name, value in keys.items():
        section, key = name.split(".")
        sections.setdefault(section, {})[key] = value
    config = pathlib.Path(tempfile.mkstemp(suffix=".cfg", dir=folder)[1])
    config.write_text("".join(f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entries.items())
                              for section, entries in sections.items()), encoding="utf-8")
    return Job(["--nproc", str(ranks), "--device", "cuda", str(config)], timeout_seconds=SECONDS_MAX)


def metrics(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def finished(folder, model, ranks=1, **settings):
    """Runs to the end; (result, training lines)."""
    with job(folder, model, ranks, **settings) as run:
        code, result = run.wait_end()
        if code != 0:
            raise RuntimeError(f"exit {code}: {run.console_tail(8)}")
        return result, metrics(run.run_dir)


class MemoryPeak:
    """Largest memory in use on a GPU, in MiB, while the block runs."""

    def __enter__(self):
        self.peak, self.stop = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.stop.wait(0.1):
            done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True,
                                  text=True, check=False)
            if done.returncode == 0:
                self.peak = max([self.peak, *map(int, done.stdout.split())])

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def every_model_learns(folder):
    found, good = [], True
    for model in MODELS:
        for amp in ("off", "bf16", "fp16"):
            _, lines = finished(folder, model, precision__amp=amp, train__steps=150)
            first, last = lines[0]["loss"], lines[-1]["loss"]
            good &= last < 0.9 * first
            found.append(f"{model} {amp} {first:.2f} → {last:.2f}")
    return good, "; ".join(found)


def same_bits_after_a_kill(folder):
    found, good = [], True
    for model, more in (("gpt", {"model__dropout": 0.1, "precision__recompute": "blocks"}), ("bert", {"model__dropout": 0.1}),
                        ("resnet18", {"precision__recompute": "blocks"}), ("resnet50", {"train__ema_decay": 0.9})):
        for amp in ("bf16", "fp16"):
            settings = {"precision__amp": amp, "train__steps": 120, "checkpoint__every_steps": 20, "train__deterministic": True, **more}
            whole, _ = finished(folder, model, **settings)
            with job(folder, model, **settings) as run:
                run.wait_until(lambda: any(e["event"] == "checkpoint_committed" and e["step"] >= 40 for e in run.events), "step 40")
                os.kill(run.worker_pids(1)[0], signal.SIGKILL)
                code, broken = run.wait_end()
            same = code == 0 and broken["restarts"] == 1 and broken["weights_digest"] == whole["weights_digest"]
            good &= same
            found.append(f"{model} {amp} {'same' if same else 'OTHER'}")
    return good, ", ".join(found)


def memory(folder):
    sizes = {"model__d_model": 1024, "model__heads": 16, "model__layers": 12, "model__sequence_length": 512, "data__batch_size": 16,
             "train__steps": 8, "log__every_steps": 1}
    peaks = {}
    for name, settings in (("off", {}), ("bf16", {"precision__amp": "bf16"}), ("recompute", {"precision__recompute": "blocks"}),
                           ("bf16, recompute", {"precision__amp": "bf16", "precision__recompute": "blocks"})):
        with MemoryPeak() as peak:
            finished(folder, "gpt", **sizes, **settings)
        peaks[name] = peak.peak
    good = peaks["bf16"] < peaks["off"] and peaks["recompute"] < peaks["off"]
    return good, ", ".join(f"{name} {value} MiB" for name, value in peaks.items())


def too_large_a_batch(folder):
    with job(folder, "resnet50", data__image_size=224, data__batch_size=16384, train__steps=3, data__samples=40000) as run:
        code, _ = run.wait_end()
        text = run.console_tail(60)
    good = code != 0 and all(word in text for word in ("batch_size", "recompute", "amp"))
    advice = [line.strip() for line in text.splitlines() if "memory" in line]
    return good, f"exit {code}: {' / '.join(advice)[:900]}"


def bad_numbers(folder):
    with job(folder, "gpt", train__lr=1e6, train__steps=200, train__optimizer="sgd", train__momentum=0.9, checkpoint__every_steps=10) as run:
        code, result = run.wait_end()
    failure = result.get("first_failure") or {}
    reason = failure.get("reason", "")
    return code != 0 and "finite" in reason and result["restarts"] == 0, f"exit {code}, restarts {result['restarts']}: {reason[:400]}"


def peer_figure(program, arguments, pattern, ranks, **environment):
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), f"{PEERS}/{program}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX, env={**os.environ, **environment})
    found = re.search(pattern, done.stdout)
    return float(found[1]) if found else float("nan")


def rate(lines):
    """Over the second half of a run."""
    half = sorted(line["samples_per_s"] for line in lines[len(lines) // 2:])
    return half[len(half) // 2]


def speed(folder, ranks):
    found = []
    big = {"data__image_size": 224, "data__samples": 60000, "model__classes": 1000, "train__steps": 80, "data__batch_size": 256,
           "precision__amp": "bf16", "data__workers": 8, "checks__fingerprint_every_steps": 0}
    result, lines = finished(folder, "resnet50", ranks, **big)
    wait = sum(line["data_wait_s"] for line in lines[len(lines) // 2:])
    ours = rate(lines)
    theirs = peer_figure("ddp_resnet.py", ["amp,cl,fused"], r"img/s=(\d+)", ranks, B="256") if PEERS else float("nan")
    found.append(f"resnet50 B 256 bf16 {ours:.0f} img/s, PyTorch {theirs:.0f}, ratio {ours / theirs:.3f}, waiting for data {wait:.2f} s")
    shape = {"model__d_model": 1024, "model__heads": 16, "model__layers": 24, "model__sequence_length": 512, "model__vocab_size": 30522,
             "data__batch_size": 16, "train__accumulation_steps": 4, "train__steps": 24, "precision__amp": "bf16", "log__every_steps": 3,
             "checks__fingerprint_every_steps": 0}
    result, lines = finished(folder, "bert", ranks, **shape)
    ours = rate(lines)
    theirs = peer_figure("bert.py", ["ddp", "64", "4"], r"seq/s=([\d.]+)", ranks) if PEERS else float("nan")
    found.append(f"bert-large 4 × 16 bf16 {ours:.0f} seq/s, PyTorch {theirs:.0f}, ratio {ours / theirs:.3f}; "
                 f"checkpoint calls {float(result['metrics'].get('checkpoint_seconds', 'nan')):.2f} s")
    return True, "; ".join(found)


def two_gpus(folder):
    norm = {"parallel__sync_bn": "on", "train__steps": 3, "log__every_steps": 1}
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # tensor cores round, in sums that depend on the size of the batch
    _, one = finished(folder, "resnet18", 1, data__batch_size=32, **{**norm, "parallel__sync_bn": "off"})
    _, two = finished(folder, "resnet18", 2, data__batch_size=16, **norm)
    del os.environ["NVIDIA_TF32_OVERRIDE"]
    sync = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(two, one))
    _, plain = finished(folder, "gpt", 2)
    _, packed = finished(folder, "gpt", 2, parallel__compress="bf16")
    apart = abs(packed[-1]["loss"] - plain[-1]["loss"]) / plain[-1]["loss"]
    with job(folder, "resnet18", 2, train__steps=400) as run:
        run.wait_until(lambda: run.find("training_progressed"), "a step")
        time.sleep(1)
        pids = run.worker_pids(1)
        done = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"], capture_output=True,
                              text=True, check=False)
        places = [sum(str(pid) == line.split(",")[0].strip() for line in done.stdout.splitlines()) for pid in pids.values()]
        run.wait_end()
    good = sync < 1e-3 and apart < 0.05 and max(places, default=0) <= 1
    return good, f"SyncBN beside one GPU {sync:.1e}, bf16 compression {apart:.1e}, GPUs that each rank holds memory on {places}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows with this text in their name")
    options = parser.parse_args()
    gpus = gpu_count()
    if gpus == 0:
        sys.exit("no GPU here")
    checks = {"every model learns": every_model_learns, "same bits after a kill": same_bits_after_a_kill, "memory": memory,
              "too large a batch": too_large_a_batch, "bad numbers": bad_numbers, "speed, 1 GPU": lambda folder: speed(folder, 1)}
    if gpus > 1:
        checks["two GPUs"] = two_gpus
        checks["speed, 2 GPUs"] = lambda folder: speed(folder, 2)
    bad = 0
    for name, check in checks.items():
        if options.only not in name:
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ddprun-gpu-") as folder:
            try:
                good, text = check(folder)
            except Exception as error:  # pylint: disable=broad-except
                good, text = False, f"{type(error).__name__}: {error}"
        bad += not good
        print(f"| {name} | {'ok' if good else 'BAD'} | {text} | {time.monotonic() - begin:.0f} s |", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
