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

QUICK = {"simple_cnn | off | 1 | SGD, Nesterov, decay", "bert | bf16 | 1 | Adam", "gpt | off | 4 | AdamW"}

# Sections of a train.cfg; `options` are those of the PyTorch module.
SIZES = {"vocab_size": 64, "d_model": 32, "heads": 4, "layers": 2, "sequence_length": 16}
# Winograd's convolution rounds otherwise: it has cases of its own.
DIRECT = {"performance": {"winograd": "off"}}
MODELS = {
    "simple_cnn": {"model": {"name": "simple_cnn"}, "data": {"kind": "idx", "batch_size": 8}},
    "resnet18": {"model": {"name": "resnet18", "stem": "imagenet"}, "data": {"kind": "cifar10", "batch_size": 8},
                 "options": {"classes": 10}, **DIRECT},
    "resnet50": {"model": {"name": "resnet50", "stem": "imagenet"}, "data": {"kind": "cifar10", "batch_size": 8},
                 "options": {"classes": 10}, **DIRECT},
    "bert": {"model": {"name": "bert", **SIZES}, "data": {"kind": "tokens", "batch_size": 8, "mask_token": 1}, "options": SIZES},
    "gpt": {"model": {"name": "gpt", **SIZES}, "data": {"kind": "tokens", "batch_size": 8}, "options": SIZES},
}


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Largest relative difference of the loss of any step, and of any tensor of weights and optimizer state at the end (in pieces:
    of any buffer after any step)."""

    loss: float
    weights: float
    reason: str
    update: float = 1e-3  # in pieces, of one change of all weights together, and of all tensors of the optimizer


EXACT = Tolerance(0.0, 0.0, "the same operations in the same order")
TOLERANCES = {
    "off": Tolerance(5e-3, 5e-3, "sums in another order: rectifiers and maxima decide nearly tied values otherwise"),
    "bf16": Tolerance(1e-2, 1e-2, "sums in another order, roundings to 8 bits"),
    "fp16": Tolerance(1e-2, 1e-2, "sums in another order, roundings to 11 bits"),
}
# 0 but for the mean of micro-batches' losses. A wrong learning rate shows 1.5e-4 (bert) and 2e-3 (gpt).
TRANSFORMERS = Tolerance(1e-5, 1e-4, "the same operations, losses added up in another order")
# Of gpt, over several processes.
TRANSFORMERS_OF_RANKS = {
    "off": Tolerance(1e-5, 1e-4, "sums over processes in another order"),
    "bf16": Tolerance(5e-4, 1e-1, "sums over processes in another order, roundings to 8 bits"),
    "fp16": Tolerance(1e-4, 1e-2, "sums over processes in another order, roundings to 11 bits"),
}
CLIPPED_FP16 = Tolerance(3e-5, 1e-2, "the norm is a sum in another order, roundings to 11 bits")
COMPRESSED = Tolerance(5e-4, 1e-1, "roundings to 8 bits after each addition, in another order")
# One step from the same weights. A wrong learning rate changes the update by 1e-2.
PIECES = Tolerance(1e-5, 1e-5, "one step", 1e-4)
WINOGRAD = Tolerance(1e-5, 1e-5, "convolutions in another order: rectifiers decide nearly tied values otherwise", 6e-3)
# Over two or four pictures in all such ties weigh more: as much as the wrong learning rate.
SINGLES = Tolerance(1e-5, 1e-5, "sums over processes in another order: rectifiers decide nearly tied values otherwise", 3e-2)
PIECES_OF_RANKS = Tolerance(1e-5, 1e-5, "sums over processes in another order: rectifiers decide nearly tied values otherwise", 6e-3)


def tolerance(model, amp):
    """What the comparison of such a setting allows."""
    if in_pieces(model):
        return PIECES
    return TOLERANCES[amp] if model == "simple_cnn" else TRANSFORMERS


def ranks_tolerance(model, amp="off"):
    """The same where several processes add up gradients."""
    return TOLERANCES[amp] if model == "simple_cnn" else TRANSFORMERS_OF_RANKS[amp]


@dataclasses.dataclass
class Case:
    """One run of ddprun and what it is held against: the reference, or another run of ddprun, on `peer_ranks` processes with the
    setting `peer`, whose section [peer] is for the reference alone (fused: false: torch.optim's loops over tensors)."""

    name: str
    setting: dict
    tolerance: Tolerance
    ranks: int = 1
    peer: dict = None        # the same setting when None
    peer_ranks: int = None   # the same number when None
    compares: tuple = ("loss", "lr", "scale", "weights", "optimizer", "ema", "evaluation", "update", "buffers",
                       "counters")
    peer_program: str = "reference"  # or "ddprun"
    wrong: bool = True       # also hold it against a learning rate that is 1 % too high, which must be noticed
    pieces: bool = False     # each step begins with ddprun's weights of the step before
    alone: bool = False      # gradients must overflow on some ranks and not on others in a step
    quick: bool = False      # one of those that the tests run


def setting(name, train, **sections):
    """A setting of this model with more keys of [train] and other sections."""
    full = {section: dict(keys) for section, keys in MODELS[name].items()}
    full["train"] = {"steps": STEPS, **train}
    for section, keys in sections.items():
        full[section] = {**full.get(section, {}), **keys}
    return full


def in_pieces(model):
    """ResNets on batches of 8 are chaotic: what is left of a difference of one rounding after some steps says nothing."""
    return model.startswith("resnet")


def grid_steps(model, amp, accumulation):
    """50, or some in pieces: fewer where a step takes seconds."""
    if not in_pieces(model):
        return STEPS
    slow = (model == "resnet50") + (amp == "fp16") + (accumulation > 1)  # fp16: CPUs without such instructions
    return (6, 4, 2, 2)[slow]


def grid():
    """Model × precision × accumulation × optimizer, one process on each side."""
    for model in MODELS:
        for amp in PRECISIONS:
            for accumulation in ACCUMULATIONS:
                for title, train in OPTIMIZERS.items():
                    keys = {**train, "accumulation_steps": accumulation, "steps": grid_steps(model, amp, accumulation)}
                    name = f"{model} | {amp} | {accumulation} | {title}"
                    precision = {"amp": amp}
                    if in_pieces(model) and amp == "fp16":
                        precision["loss_scale"] = 256.0  # from the usual scale all of so few steps would overflow and be skipped
                    yield Case(name, setting(model, keys, precision=precision), tolerance(model, amp),
                               pieces=in_pieces(model), quick=name in QUICK)


def loops():
    """torch.optim's loops over tensors, which round in another order than its kernels for all tensors at once."""
    for model in ("simple_cnn", "bert", "gpt"):
        for title, train in OPTIMIZERS.items():
            yield Case(f"{model} | off | 1 | {title}, beside torch.optim's loop", setting(model, train, peer={"fused": False}),
                       tolerance(model, "off"), quick=(model, title) == ("bert", "Adam"))


def ranks():
    """Several processes beside Python DDP on as many, and beside one process with the whole batch (TR37, TR48: divided once)."""
    for model, train, quick in (("simple_cnn", SGD, False), ("bert", ADAMW, False), ("gpt", ADAMW, True)):
        allowed = ranks_tolerance(model)
        whole = setting(model, train)
        for count in (2, 4):
            part = setting(model, train, data={"batch_size": 8 // count})
            yield Case(f"{model}, {count} processes beside DDP", part, allowed, count, quick=quick and count == 2)
            yield Case(f"{model}, {count} processes beside one", part, allowed, count, whole, 1, quick=quick and count == 4)
        for count, other in ((2, 1), (4, 1), (4, 2)):
            yield Case(f"{model}, {count} processes of ddprun beside {other} of ddprun", setting(model, train, data={"batch_size": 8 // count}),
                       allowed, count, setting(model, train, data={"batch_size": 8 // other}), other, peer_program="ddprun")
    for amp in PRECISIONS:
        for count in (2, 4):
            yield Case(f"gpt, {amp}, {count} processes, accumulation 4, beside DDP",
                       setting("gpt", {**ADAMW, "accumulation_steps": 4}, precision={"amp": amp}), ranks_tolerance("gpt", amp), count)


def tails():
    """203 samples, which no number of ranks and no batch divides: the end of an epoch (TR1, TR8)."""
    for count in (2, 4):
        for drop_last in (True, False):
            for model, train in (("simple_cnn", SGD), ("bert", ADAMW)):  # of bert every rank has another number of targets
                yield Case(f"{model}, {count} processes, drop_last = {str(drop_last).lower()}, beside DDP",
                           setting(model, train, data={"drop_last": drop_last}), ranks_tolerance(model), count)
    # The last batch of an epoch has 6 of 8 samples, the last update 3 of 5 batches.
    tail = setting("simple_cnn", {**SGD, "accumulation_steps": 5}, data={"drop_last": False})
    yield Case("simple_cnn, 2 processes, accumulation 5, short last batch, beside DDP", tail, TOLERANCES["off"], 2, quick=True)


def compression():
    """Gradients that travel as bfloat16, beside DDP's bf16_compress_hook."""
    for model, train in (("simple_cnn", SGD), ("gpt", ADAMW)):
        for count in (2, 4):
            yield Case(f"{model}, {count} processes, compress = bf16, beside bf16_compress_hook",
                       setting(model, train, parallel={"compress": "bf16"}), TOLERANCES["bf16"] if model == "simple_cnn" else COMPRESSED, count,
                       quick=(model, count) == ("gpt", 2))


def norms():
    """SyncBN over several processes beside one process with the whole batch (TR13: also with one sample a process; TR14)."""
    for count, batch in ((2, 4), (4, 2), (2, 1), (4, 1)):
        # The usual stem leaves one pixel of a picture: the norm of a batch of 2 would then be ±1, whatever the weights are.
        stem = {"stem": "cifar" if count * batch == 2 else "imagenet"}
        whole = setting("resnet18", {**SGD, "steps": 4}, data={"batch_size": batch * count}, model=stem, options=stem)
        part = {**whole, "data": {**whole["data"], "batch_size": batch}, "parallel": {"sync_bn": "on"}}
        yield Case(f"resnet18, SyncBN, {count} processes of batch {batch} beside one", part, SINGLES if batch == 1 else PIECES_OF_RANKS, count,
                   whole, 1, pieces=True, wrong=batch > 1, quick=(count, batch) == (2, 4))
    yield Case("resnet18, no SyncBN, 2 processes beside DDP", setting("resnet18", {**SGD, "steps": 6}, parallel={"sync_bn": "off"}),
               PIECES_OF_RANKS, 2, pieces=True)


def winograd():
    """Winograd's convolution, the default on CPUs, beside PyTorch's direct one. Adam's first update is the sign of each gradient, which
    a rounding turns where it is nearly 0: eps is as large here as such a gradient. Of resnet50 with its first weights any order of sums
    gives other gradients (PyTorch's own in its two memory layouts are 3.5e-2 apart): only what forward gives is compared."""
    optimizers = {title: train for title, train in OPTIMIZERS.items() if train["optimizer"] == "sgd"}
    optimizers["Adam, eps 0.001"] = {**OPTIMIZERS["Adam"], "eps": 0.001}
    # All layers have more than one pixel, so that a norm is of more values than a batch has pictures.
    keys = {"model": {"stem": "cifar"}, "options": {"stem": "cifar"}, "performance": {"winograd": "auto"}}
    for title, train in optimizers.items():
        yield Case(f"resnet18, Winograd | off | 1 | {title}", setting("resnet18", {**train, "steps": 6}, **keys), WINOGRAD, pieces=True,
                   quick=title == "SGD, momentum")
    yield Case("resnet50, Winograd, forward", setting("resnet50", {**SGD, "steps": 4}, **keys), WINOGRAD, pieces=True, wrong=False,
               compares=("loss", "lr", "buffers", "counters"))


def scaling():
    """The loss scale of fp16 step by step: falls from where gradients overflow, and rises again every 3 steps (TR21, TR22)."""
    scaled = {"amp": "fp16", "loss_scale": 2.0 ** 30, "loss_scale_growth_steps": 3}
    for count in (1, 2, 4):
        yield Case(f"gpt, fp16 with overflows, {count} process{'es' if count > 1 else ''}", setting("gpt", ADAMW, precision=scaled), ranks_tolerance("gpt", "fp16"),
                   count, alone=count > 1, quick=count < 4)
    clipped = {**ADAMW, "clip_norm": 0.5}
    for model in ("bert", "gpt"):
        yield Case(f"{model}, fp16, clipped", setting(model, clipped, precision={"amp": "fp16"}), CLIPPED_FP16)
    yield Case("gpt, fp16 with overflows, clipped, accumulation 4", setting("gpt", {**clipped, "accumulation_steps": 4}, precision=scaled), CLIPPED_FP16)


def schedules():
    """The learning rate step by step, and what follows from it. 25 steps are an epoch."""
    for name, keys in (("constant", {}), ("cosine", {"min_lr": 1e-5}), ("linear", {"min_lr": 1e-5}),
                       ("step", {"decay_epochs": 1, "gamma": 0.5})):
        for warmup in (0, 10):
            train = {**SGD, **keys, "schedule": name, "warmup_steps": warmup}
            yield Case(f"simple_cnn, schedule {name}, warm-up of {warmup} steps", setting("simple_cnn", train), TOLERANCES["off"],
                       quick=(name, warmup) == ("cosine", 10))
        yield Case(f"simple_cnn, schedule {name}, scale_lr linear, 2 processes", setting(
            "simple_cnn", {**SGD, **keys, "schedule": name, "scale_lr": "linear"}, data={"batch_size": 4}), TOLERANCES["off"], 2)


def options():
    """One key each; recompute also under autocast (TR35)."""
    for name, train in (("clip_norm", {**SGD, "clip_norm": 0.5}), ("label_smoothing", {**SGD, "label_smoothing": 0.1}),
                        ("weight_decay_on matrices", {**ADAMW, "weight_decay": 0.1, "weight_decay_on": "matrices"}),
                        ("betas and eps", {**ADAMW, "betas": [0.8, 0.95], "eps": 1e-6}), ("ema_decay", {**SGD, "ema_decay": 0.9})):
        for model in ("simple_cnn", "bert", "gpt"):
            yield Case(f"{model}, {name}", setting(model, train), tolerance(model, "off"), quick=model == "gpt" and "_norm" in name)
    yield Case("resnet18, ema_decay", setting("resnet18", {**SGD, "ema_decay": 0.9, "steps": 4}), tolerance("resnet18", "off"), pieces=True)
    for amp in ("off", "bf16"):
        yield Case(f"gpt, {amp}, recompute", setting("gpt", ADAMW, precision={"amp": amp, "recompute": "blocks"}), TRANSFORMERS)
    yield Case("simple_cnn, recompute", setting("simple_cnn", SGD, precision={"recompute": "blocks"}), TOLERANCES["off"],
               quick=True)
    yield Case("resnet18, recompute", setting("resnet18", {**SGD, "steps": 4}, precision={"recompute": "blocks"}),
               tolerance("resnet18", "off"), pieces=True)


def beginnings():
    """Initial weights from the same seed: a learning rate too small to change any of them."""
    for model in MODELS:
        yield Case(f"{model}, initial weights", setting(model, {"optimizer": "sgd", "lr": 1e-60, "steps": 1}), EXACT,
                   compares=("weights",), wrong=False, quick=model != "resnet50")


def exchanges():
    """Weights from elsewhere, some steps, and ddprun's checkpoint in a PyTorch module: the loss on the test split is the same."""
    for model in MODELS:
        steps = 2 if in_pieces(model) else 10
        yield Case(f"{model}, weights from a file, back to PyTorch", setting(
            model, {**SGD, "steps": steps, "evaluate": True}, model={"weights": "a file"}), tolerance(model, "off"),
                   pieces=in_pieces(model), quick=model in ("resnet18", "gpt"))


def everything():
    for part in (beginnings, exchanges, grid, loops, ranks, tails, compression, norms, winograd, scaling, schedules, options):
        yield from part()
