"""A comparison in pieces of one step: before each step the reference takes over the state of ddprun's checkpoint of the step before.

Where training is chaotic, a difference of one rounding decides within some steps what is learned; one step does not carry it that far.
"""

import pathlib

import torch
from safetensors.torch import load_file

import reference_models
from parity_difference import change_difference, need_same_names, tensor_difference


def read_checkpoint(folder):
    """The tensors of a checkpoint: "weights", "optimizer", "ema"; no entries for what it does not have."""
    files = {"weights": "model", "optimizer": "optimizer", "ema": "ema"}
    return {part: load_file(folder / f"{name}.safetensors") if (folder / f"{name}.safetensors").exists() else {}
            for part, name in files.items()}


def kind_of(part, name):
    """Of optimizer tensors what they are (exp_avg, exp_avg_sq, …), as their sizes have nothing in common."""
    return name.split(".")[0] if part == "optimizer" else ""


class Pieces:
    """Sets a ReferenceTrainer to ddprun's state before each step, and keeps the largest differences after it.

    "update" and "ema" are differences of changes, "optimizer" of values, over all elements together; "buffers" (the running statistics of norms,
    which do not depend on gradients) and numbers beside the optimizer's tensors are compared one by one.
    """

    def __init__(self, trainer, checkpoints):
        self.trainer, self.checkpoints, self.worst = trainer, pathlib.Path(checkpoints), {}
        self.parameters = {name for name, _ in trainer.model.named_parameters()}
        self.start = trainer.state()

    def after(self, step):
        """To be called after each step (from 1): measures, then takes over ddprun's state of this step."""
        ours, theirs = read_checkpoint(self.checkpoints / f"step-{step}"), self.trainer.state()
        for name in set(ours["optimizer"]) - set(theirs["optimizer"]):  # torch.optim makes its tensors in the first update that is not skipped
            theirs["optimizer"][name] = torch.zeros_like(ours["optimizer"][name])
        for part in ("weights", "optimizer", "ema"):
            need_same_names(ours[part], theirs[part])
            large, single = self.split(part, theirs[part])
            for kind in sorted({kind_of(part, name) for name in large}):
                some = {name: value for name, value in large.items() if kind_of(part, name) == kind}
                start = {} if part == "optimizer" else self.start[part]
                before = {name: start.get(name, torch.zeros(())) for name in some}
                self.keep("update" if part == "weights" else part, change_difference(before, ours[part], some), f"{kind} step {step}".strip())
            distance, name = tensor_difference({name: ours[part][name] for name in single}, single)
            self.keep("counters" if part == "optimizer" else "buffers", distance, f"{name} in step {step}")
        self.take_over(ours)

    def split(self, part, tensors):
        """(what is compared as a whole, what is compared one by one)"""
        whole = {name for name, value in tensors.items() if (value.dim() > 0 if part == "optimizer" else name in self.parameters)}
        return ({name: value for name, value in tensors.items() if name in whole},
                {name: value for name, value in tensors.items() if name not in whole})

    def keep(self, part, distance, place):
        if not distance <= self.worst.get(part, -1.0):
            self.worst[part], self.worst[f"{part} of"] = distance, place

    def take_over(self, ours):
        trainer, self.start = self.trainer, ours
        reference_models.load_weights(trainer.model, ours["weights"])
        for name, parameter in trainer.model.named_parameters():
            for key, value in trainer.optimizer.state[parameter].items():
                if torch.is_tensor(value):
                    value.copy_(ours["optimizer"][f"{key}.{name}"])
        trainer.set_scale(ours["optimizer"])
        if trainer.ema:
            reference_models.load_weights(trainer.ema.module, ours["ema"])
