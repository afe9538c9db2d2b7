#!/usr/bin/env python3
"""Writes update_vectors.txt: what PyTorch's optimizers, schedulers, clipping and GradScaler give for small inputs.

Each line: a kind, the keys of train.cfg that belong to it, and numbers, separated by "|".
The weights are sin(1), sin(2), …, the gradients of step s cos(1 + s), cos(2 + s), …: a matrix of 3 × 4 and a vector of 4.
"""
import math
import sys

import torch

STEPS = 5
SHAPES = [(3, 4), (4,)]


def numbers(function, begin, shape):
    count = math.prod(shape)
    return torch.tensor([function(begin + i) for i in range(count)], dtype=torch.float64).float().reshape(shape)


def weights():
    return [torch.nn.Parameter(numbers(math.sin, 1 + 12 * i, shape)) for i, shape in enumerate(SHAPES)]


def set_gradients(parameters, step):
    for i, parameter in enumerate(parameters):
        parameter.grad = numbers(math.cos, 1 + 12 * i + step, parameter.shape)


def line(kind, keys, values):
    print("|".join([kind, " ".join(keys), " ".join(f"{float(value):.9g}" for value in values)]))


def optimizers():
    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    for name, kind, settings in [
        ("sgd", sgd, {}),
        ("sgd", sgd, {"momentum": 0.9}),
        ("sgd", sgd, {"momentum": 0.9, "weight_decay": 0.1}),
        ("sgd", sgd, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("adam", adam, {}),
        ("adam", adam, {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-4}),
        ("adamw", adamw, {"weight_decay": 0}),
        ("adamw", adamw, {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-4}),
    ]:
        for decay_on in ("all", "matrices"):
            parameters = weights()
            groups = [{"params": parameters}]
            if decay_on == "matrices":
                if not settings.get("weight_decay"):
                    continue
                groups = [{"params": [p]} for p in parameters]
                groups[1]["weight_decay"] = 0
            optimizer = kind(groups, lr=0.05, foreach=False, **settings)
            for step in range(STEPS):
                set_gradients(parameters, step)
                optimizer.step()
            keys = [f"train.optimizer={name}", "train.lr=0.05", f"train.weight_decay_on={decay_on}"]
            keys += [f"train.{key}={str(list(value) if isinstance(value, tuple) else value).lower().replace(' ', '')}"
                     for key, value in settings.items()]
            line("optimizer", keys, torch.cat([p.detach().flatten() for p in parameters]))


def rates(scheduler_of, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    scheduler = scheduler_of(optimizer)
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


def schedules():
    """Runs of 40 updates, 8 an epoch. The rate 0.4 is lr; where four ranks scale it, lr is 0.1."""
    total, per_epoch, warmup = 40, 8, 6
    lr = torch.optim.lr_scheduler

    def warmed(later):
        def make(optimizer):
            first = lr.LinearLR(optimizer, start_factor=1 / warmup, end_factor=1, total_iters=warmup - 1)
            return lr.SequentialLR(optimizer, [first, later(optimizer)], milestones=[warmup])
        return make

    base = ["train.lr=0.4"]
    line("schedule", base + ["train.schedule=constant"], rates(lambda o: lr.ConstantLR(o, 1, 0), total))
    step = ["train.schedule=step", "train.decay_epochs=2", "train.gamma=0.3"]
    line("schedule", base + step, rates(lambda o: lr.StepLR(o, 2 * per_epoch, 0.3), total))
    cosine = ["train.schedule=cosine", "train.min_lr=0.01"]
    line("schedule", base + cosine, rates(lambda o: lr.CosineAnnealingLR(o, total, 0.01), total))
    linear = ["train.schedule=linear", "train.min_lr=0.1"]
    line("schedule", base + linear, rates(lambda o: lr.LinearLR(o, 1, 0.25, total), total))
    warm = [f"train.warmup_steps={warmup}"]
    line("schedule", base + warm + cosine, rates(warmed(lambda o: lr.CosineAnnealingLR(o, total - warmup, 0.01)), total))
    line("schedule", base + warm + linear, rates(warmed(lambda o: lr.LinearLR(o, 1, 0.25, total - warmup)), total))
    scaled = ["train.lr=0.1", "train.scale_lr=linear", f"train.warmup_steps={warmup}"]
    line("schedule", scaled + cosine, rates(warmed(lambda o: lr.CosineAnnealingLR(o, total - warmup, 0.01)), total))


def clipping():
    for max_norm in (0.5, 2, 100):
        parameters = weights()
        set_gradients(parameters, 0)
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        line("clip", [f"train.clip_norm={max_norm}"], [norm, *torch.cat([p.grad.flatten() for p in parameters])])


def scaling():
    """Overflows in updates 2, 3 and 9 of 14: the scale before each update, then all weights at the end."""
    for device_amp in ("cpu",):
        parameters = weights()
        optimizer = torch.optim.AdamW(parameters, lr=0.05, weight_decay=0, foreach=False)
        scaler = torch.amp.GradScaler(device_amp, init_scale=1024, growth_interval=3)
        scales = []
        for step in range(14):
            scales.append(scaler.get_scale())
            scaler.scale(torch.zeros(1))  # makes its state
            set_gradients(parameters, step)
            for parameter in parameters:
                parameter.grad *= scaler.get_scale()
            if step in (2, 3, 9):
                parameters[1].grad[2] = math.inf if step == 2 else math.nan
            scaler.step(optimizer)
            scaler.update()
        keys = ["train.optimizer=adamw", "train.lr=0.05", "precision.amp=fp16", "precision.loss_scale=1024",
                "precision.loss_scale_growth_steps=3"]
        line("scaler", keys, [*scales, *torch.cat([p.detach().flatten() for p in parameters])])


print(f"# PyTorch {torch.__version__.split('+')[0]}, made by {sys.argv[0].rsplit('/', 1)[-1]}")
optimizers()
schedules()
clipping()
scaling()
