"""Runs one setting with ddprun and with the reference trainer, and measures how far apart they end."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import torch
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file

import parity_data
import reference_models
import reference_trainer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DDPRUN = str(pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build/bin")) / "ddprun")
RUN_SECONDS_MAX = 900
TRAINING, TEST = 203, 50  # samples; 203 leaves a rest for every batch size and number of ranks


class ParityError(Exception):
    """A run that did not do what it should have."""


def toml(sections):
    """A dict of sections as the text of a train.cfg (JSON's strings, numbers, lists and booleans are TOML's)."""
    lines = []
    for section, keys in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def defaults(setting):
    """The setting with what all settings share."""
    full = {section: dict(keys) for section, keys in setting.items() if isinstance(keys, dict)}
    for section in ("train", "log", "checkpoint"):
        full.setdefault(section, {})
    full["data"] = {"shuffle": True, "drop_last": True, "augment": "none", "workers": 1, **full["data"]}
    full["train"] = {"seed": 1024, "evaluate": False, **full["train"]}
    full["log"]["every_steps"] = 1
    full["checkpoint"]["every_steps"] = 0
    return full


class Workshop:
    """A folder with the data sets, made when first asked for, and the device to train on. Use as a context manager."""

    def __init__(self, device="cpu"):
        self.device = device

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-parity-"))
        self.loaded = {}
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def data_dir(self, kind):
        folder = self.folder / f"data-{kind}"
        if not folder.exists():
            parity_data.WRITERS[kind](folder, TRAINING, TEST)
        return folder

    def samples(self, setting, split="train"):
        """The data set of a setting, as ddprun's loader makes it."""
        key = (setting["data"]["kind"], setting["model"]["name"], setting["train"]["seed"], split)
        if key not in self.loaded:
            self.loaded[key] = parity_data.load(setting, self.data_dir(setting["data"]["kind"]), split)
        return self.loaded[key]

    def weights(self, setting):
        """The file of initial weights for a setting that says that it begins with some."""
        path = self.folder / f"{setting['model']['name']}.safetensors"
        if not path.exists():
            save_other_weights(setting, path)
        return path

    def ddprun(self, setting, ranks, extra=()):
        """One run of ddprun to its end; returns what result_of() of the reference does, and result.json as "result"."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        config = {section: keys for section, keys in setting.items() if section != "options"}
        config["data"] = {**config["data"], "dir": str(self.data_dir(config["data"]["kind"]))}
        if "weights" in config["model"]:
            config["model"]["weights"] = str(self.weights(setting))
        (folder / "train.cfg").write_text(toml(config), encoding="utf-8")
        run = folder / "run"
        command = [DDPRUN, "--nproc", str(ranks), "--device", self.device, "--run-dir", str(run), *extra, str(folder / "train.cfg")]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=RUN_SECONDS_MAX, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            raise ParityError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        result = read_run(run)
        shutil.rmtree(folder)
        return result

    def reference(self, jobs, ranks):
        """Results of the settings under one group of Python processes (none for one rank: in this process)."""
        work = []
        for number, setting in enumerate(jobs):
            if "weights" in setting["model"]:
                setting["model"]["weights"] = str(self.weights(setting))
            work.append((setting, self.samples(setting), str(self.folder / f"reference-{number}.pt")))
        if ranks == 1:
            reference_trainer.run_rank(0, 1, "", work, self.device)
        else:
            meeting = self.folder / "meeting"
            meeting.unlink(missing_ok=True)
            multiprocessing.spawn(reference_trainer.run_rank, (ranks, f"file://{meeting}", work, self.device), nprocs=ranks)
        results = [torch.load(path) for *_, path in work]
        for *_, path in work:
            os.unlink(path)
        return results


def read_run(run):
    """Metrics of each step, and the tensors of the last checkpoint."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    checkpoint = run / "checkpoints" / f"step-{result['final_step']}"
    tensors = {name: load_file(checkpoint / f"{name}.safetensors") if (checkpoint / f"{name}.safetensors").exists() else {}
               for name in ("model", "optimizer", "ema")}
    return {"lines": [line for line in lines if "loss" in line], "weights": tensors["model"], "optimizer": tensors["optimizer"],
            "ema": tensors["ema"], "result": result}


def relative(ours, theirs):
    """|ours − theirs| / |theirs|; infinite where one of them is no number and the other is."""
    if ours is None:  # JSON's way to write what is not finite
        return 0.0 if theirs - theirs != 0 else float("inf")
    return abs(ours - theirs) / max(abs(theirs), 1e-30)


def tensor_difference(ours, theirs):
    """The largest ‖ours − theirs‖ / ‖theirs‖ over the tensors, and its name. Integers must be equal."""
    missing = sorted(set(ours) ^ set(theirs))
    if missing:
        raise ParityError(f"tensors that only one side has: {missing[:6]}")
    worst = (0.0, "")
    for name, value in theirs.items():
        mine, value = ours[name].double().flatten(), value.double().flatten()
        distance, size = (mine - value).norm().item(), value.norm().item()
        worst = max(worst, (0.0 if distance == 0 else distance / size if size > 0 else float("inf"), name))
    return worst


def module_of(setting):
    """The PyTorch module of a setting: torchvision's own where it is installed and has it."""
    name, options = setting["model"]["name"], dict(setting.get("options", {}))
    if name.startswith("resnet") and options.get("stem", "imagenet") == "imagenet":
        with contextlib.suppress(ImportError):
            import torchvision
            return getattr(torchvision.models, name)(num_classes=options["classes"])
    return reference_models.make(name, **options)


def save_other_weights(setting, path):
    """A state_dict as it would come from elsewhere, with running statistics that are not the initial ones."""
    torch.manual_seed(77)
    module = module_of(setting)
    for name, value in module.state_dict().items():
        if name.endswith("running_mean"):
            value.normal_(0, 0.1)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
    save_file(module.state_dict(), path)


def evaluation_difference(setting, ours, inputs, targets):
    """How far ddprun's loss on the test split is from that of a PyTorch module which has loaded ddprun's weights strictly."""
    module = module_of(setting)
    reference_models.load_weights(module, ours["weights"])
    loss, accuracy = reference_trainer.evaluate(module, inputs, targets)
    metrics = {key: float(value) for key, value in ours["result"]["metrics"].items()}
    return max(relative(metrics["test_loss"], loss), relative(metrics["test_accuracy"], accuracy))


def compare(ours, theirs):
    """Differences of two results: loss (largest over the steps), lr, scale, weights, optimizer, ema."""
    if len(ours["lines"]) != len(theirs["lines"]):
        raise ParityError(f"{len(ours['lines'])} steps of ddprun, {len(theirs['lines'])} of the reference")
    pairs = list(zip(ours["lines"], theirs["lines"]))
    difference = {"loss": max(relative(a["loss"], b["loss"]) for a, b in pairs), "lr": max(relative(a["lr"], b["lr"]) for a, b in pairs)}
    if "loss_scale" in pairs[0][1]:
        difference["scale"] = max(relative(a["loss_scale"], b["loss_scale"]) for a, b in pairs)
    tied = {"lm_head.weight"}
    for part in ("weights", "optimizer", "ema"):
        if theirs[part] or ours[part]:
            difference[part], difference[f"{part} of"] = tensor_difference(
                ours[part], {name: value for name, value in theirs[part].items() if name not in tied - set(ours[part])})
    return difference
