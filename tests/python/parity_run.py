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
from safetensors.torch import save_file

import parity_data
import reference_models
import reference_trainer
from parity_difference import ParityError, relative, tensor_difference
from parity_pieces import read_checkpoint

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DDPRUN = str(pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build/bin")) / "ddprun")
RUN_SECONDS_MAX = 900
TRAINING, TEST = 203, 50  # samples; 203 leaves a rest for every batch size and number of ranks


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
    full["checkpoint"].setdefault("every_steps", 0)
    return full


def in_pieces(setting):
    """The setting with a checkpoint of every step, all of which stay."""
    full = defaults(setting)
    full["checkpoint"] = {"every_steps": 1, "async": False, "keep": 1000}
    return full


@contextlib.contextmanager
def temporary_folder():
    """A folder that is there within the context."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-parity-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Workshop:
    """The data sets and files of weights in a folder, which several processes share, and the device to train on."""

    def __init__(self, device, folder):
        self.device, self.folder, self.loaded = device, folder, {}

    def prepare(self, settings):
        """Makes what these settings read, before anything that reads it begins."""
        for setting in settings:
            self.data_dir(setting["data"]["kind"])
            if "weights" in setting["model"]:
                self.weights(setting)

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
        """One run of ddprun to its end; returns what result_of() of the reference does, result.json as "result", and where its
        checkpoints are if it made one after each step ("checkpoints", to be removed by the caller)."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        config = {section: keys for section, keys in setting.items() if section not in ("options", "peer")}
        config["data"] = {**config["data"], "dir": str(self.data_dir(config["data"]["kind"]))}
        if "weights" in config["model"]:
            config["model"]["weights"] = str(self.weights(setting))
        (folder / "train.cfg").write_text(toml(config), encoding="utf-8")
        run = folder / "run"
        command = ["timeout", str(RUN_SECONDS_MAX), DDPRUN, "--nproc", str(ranks), "--device", self.device, "--run-dir", str(run), *extra, str(folder / "train.cfg")]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            raise ParityError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        result = read_run(run)
        if setting["checkpoint"]["every_steps"]:
            result["checkpoints"] = run / "checkpoints"
        else:
            shutil.rmtree(folder)
        return result

    def reference(self, jobs, ranks):
        """Results of the settings under one group of Python processes (none for one rank: in this process)."""
        work, folder = [], pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for number, setting in enumerate(jobs):
            if "weights" in setting["model"]:
                setting["model"]["weights"] = str(self.weights(setting))
            work.append((setting, self.samples(setting), str(folder / f"reference-{number}.pt")))
        if ranks == 1:
            reference_trainer.run_rank(0, 1, "", work, self.device)
        else:
            multiprocessing.spawn(reference_trainer.run_rank, (ranks, f"file://{folder / 'meeting'}", work, self.device), nprocs=ranks)
        results = [torch.load(path) for *_, path in work]
        shutil.rmtree(folder)
        return results


def read_run(run):
    """Metrics of each step, and the tensors of the last checkpoint."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    checkpoint = read_checkpoint(run / "checkpoints" / f"step-{result['final_step']}")
    return {"lines": [line for line in lines if "loss" in line], "result": result, **checkpoint}


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
    state = module.state_dict()
    if isinstance(module, reference_models.Gpt):
        del state["lm_head.weight"]  # wte.weight: safetensors files have no tensor twice
    save_file(state, path)


def evaluation_difference(setting, ours, inputs, targets):
    """How far ddprun's loss on the test split is from that of a PyTorch module which has loaded ddprun's weights strictly."""
    module = module_of(setting)
    reference_models.load_weights(module, ours["weights"])
    loss, accuracy = reference_trainer.evaluate(module, inputs, targets)
    metrics = {key: float(value) for key, value in ours["result"]["metrics"].items()}
    return max(relative(metrics["test_loss"], loss), relative(metrics["test_accuracy"], accuracy))


def compare(ours, theirs):
    """Differences of two results: loss (largest over the steps), lr, scale, weights, optimizer, ema; in pieces also update.
    And in how many steps some ranks of the reference, but not all, had gradients that overflowed ("alone")."""
    if len(ours["lines"]) != len(theirs["lines"]):
        raise ParityError(f"{len(ours['lines'])} steps of ddprun, {len(theirs['lines'])} of the reference")
    pairs = list(zip(ours["lines"], theirs["lines"]))
    difference = {"loss": max(relative(a["loss"], b["loss"]) for a, b in pairs), "lr": max(relative(a["lr"], b["lr"]) for a, b in pairs)}
    if "loss_scale" in pairs[0][1]:
        difference["scale"] = max(relative(a["loss_scale"], b["loss_scale"]) for a, b in pairs)
    world = theirs.get("world", 1)
    difference["alone"] = sum(0 < line.get("overflows", 0) < world for line in theirs["lines"])
    if "pieces" in theirs:
        return {**difference, **theirs["pieces"]}
    for part in ("weights", "optimizer", "ema"):
        if theirs[part] or ours[part]:
            tied = {"lm_head.weight"} - set(ours[part])
            peer = {name: value for name, value in theirs[part].items() if name not in tied}
            difference[part], difference[f"{part} of"] = tensor_difference(ours[part], peer)
    return difference
