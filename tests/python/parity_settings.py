"""What is compared: models, optimizers, and the settings around them, each with its tolerance."""

import dataclasses

OPTIMIZERS = {
    "SGD, momentum": {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9},
    "SGD, Nesterov, decay": {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005},
    "Adam": {"optimizer": "adam", "lr": 0.001},
    "AdamW": {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01},
}
SGD, ADAMW = OPTIMIZERS["SGD, momentum"], OPTIMIZERS["AdamW"]
ACCUMULATIONS = (1, 4)
PRECISIONS = ("off", "bf16", "fp16")
STEPS = 50
SLOW_STEPS = 5  # fp16 convolutions on a CPU without fp16 instructions: 3 to 6 s a step

# Sections of a train.cfg; `options` are those of the PyTorch module.
SIZES = {"vocab_size": 64, "d_model": 32, "heads": 4, "layers": 2, "sequence_length": 16}
MODELS = {
    "simple_cnn": {"model": {"name": "simple_cnn"}, "data": {"kind": "idx", "batch_size": 8}},
    "resnet18": {"model": {"name": "resnet18", "stem": "imagenet"}, "data": {"kind": "cifar10", "batch_size": 8},
                 "options": {"classes": 10}},
    "resnet50": {"model": {"name": "resnet50", "stem": "imagenet"}, "data": {"kind": "cifar10", "batch_size": 8},
                 "options": {"classes": 10}},
    "bert": {"model": {"name": "bert", **SIZES}, "data": {"kind": "tokens", "batch_size": 8}, "options": SIZES},
    "gpt": {"model": {"name": "gpt", **SIZES}, "data": {"kind": "tokens", "batch_size": 8}, "options": SIZES},
}


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Largest relative difference of the loss of any step, and of any tensor of weights and optimizer state at the end."""

    loss: float
    weights: float
    reason: str


EXACT = Tolerance(0.0, 0.0, "the same operations in the same order")
TOLERANCES = {
    "off": Tolerance(1e-4, 1e-3, "sums in another order"),
    "bf16": Tolerance(1e-2, 1e-2, "roundings to 8 bits"),
    "fp16": Tolerance(1e-3, 1e-2, "roundings to 11 bits"),
}


@dataclasses.dataclass
class Case:
    """One run of ddprun and what it is held against: the reference on `peer_ranks` processes with the setting `peer`."""

    name: str
    setting: dict
    tolerance: Tolerance
    ranks: int = 1
    peer: dict = None        # the same setting when None
    peer_ranks: int = None   # the same number when None
    compares: tuple = ("loss", "lr", "scale", "weights", "optimizer", "ema")
    wrong: bool = False      # also hold it against a learning rate that is 1 % too high, which must be noticed


def setting(model, train, **sections):
    """A setting of this model with more keys of [train] and other sections."""
    full = {section: dict(keys) for section, keys in MODELS[model].items()}
    full["train"] = {"steps": STEPS, **train}
    for section, keys in sections.items():
        full[section] = {**full.get(section, {}), **keys}
    return full


def grid():
    """Model × precision × accumulation × optimizer, one process on each side."""
    for model in MODELS:
        for amp in PRECISIONS:
            for accumulation in ACCUMULATIONS:
                for title, train in OPTIMIZERS.items():
                    slow = amp == "fp16" and model.startswith("resnet")
                    keys = {**train, "accumulation_steps": accumulation, "steps": SLOW_STEPS if slow else STEPS}
                    yield Case(f"{model} | {amp} | {accumulation} | {title}", setting(model, keys, precision={"amp": amp}),
                               TOLERANCES[amp], wrong=accumulation == 1)
