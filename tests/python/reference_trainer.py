"""What a train.cfg means, in plain PyTorch: the loop that people write around DistributedDataParallel, DistributedSampler,
torch.optim, torch.autocast and torch.amp.GradScaler. ddprun is compared with it step by step.

A setting is a dict of sections as in train.cfg. One process a rank; with one rank there is no process group.
"""

import contextlib

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DistributedSampler

import reference_models
from parity_pieces import Pieces

SCALER = {"scale": "loss_scale", "_growth_tracker": "loss_scale_growth_tracker"}  # GradScaler's names → those of a checkpoint
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def peak_lr(train, world):
    """The rate that a schedule falls from."""
    return train["lr"] * (world if train.get("scale_lr") == "linear" else 1)


def warmup_steps(train, steps_per_epoch):
    """Five epochs with scale_lr = linear, but at most a tenth of the run."""
    return train.get("warmup_steps", min(5 * steps_per_epoch, train["steps"] // 10) if train.get("scale_lr") == "linear" else 0)


def make_optimizer(train, parameters, lr, fused):
    """torch.optim's; `fused`: its kernels for all tensors at once, as ddprun calls them, else its loops over tensors."""
    decay = train.get("weight_decay", 0.0)
    groups = parameters
    if train.get("weight_decay_on") == "matrices":
        parameters = list(parameters)
        groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
                  {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}]
    if train["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr, momentum=train.get("momentum", 0.0), nesterov=train.get("nesterov", False),
                               weight_decay=decay, fused=fused)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[train["optimizer"]]
    return kind(groups, lr, betas=tuple(train.get("betas", (0.9, 0.999))), eps=train.get("eps", 1e-8), weight_decay=decay, fused=fused)


def make_schedule(train, optimizer, steps_per_epoch):
    """torch.optim's schedule for [train] schedule after a linear warm-up; stepped after each update."""
    warmup, kind = warmup_steps(train, steps_per_epoch), train.get("schedule", "constant")
    length, end, peak = train["steps"] - warmup, train.get("min_lr", 0.0), optimizer.param_groups[0]["lr"]
    if kind == "cosine":
        after = lr_scheduler.CosineAnnealingLR(optimizer, length, end)
    elif kind == "linear":
        after = lr_scheduler.LinearLR(optimizer, 1.0, end / peak, length)
    elif kind == "step":
        milestones = range(train["decay_epochs"] * steps_per_epoch - warmup, length, train["decay_epochs"] * steps_per_epoch)
        after = lr_scheduler.MultiStepLR(optimizer, list(milestones), train["gamma"])
    else:
        after = lr_scheduler.ConstantLR(optimizer, 1.0, 1)
    if warmup <= 1:
        return after
    before = lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
    return lr_scheduler.SequentialLR(optimizer, [before, after], [warmup])


class ReferenceTrainer:
    """Trains `setting` on a data set of parity_data as rank `rank` of `world`."""

    def __init__(self, setting, samples, rank=0, world=1, device="cpu"):
        self.data, self.train = setting["data"], setting["train"]
        self.amp = setting.get("precision", {}).get("amp", "off")
        self.samples, self.rank, self.world = samples, rank, world
        self.device = torch.device(device, rank) if device == "cuda" else torch.device(device)
        torch.manual_seed(self.train["seed"])
        self.model = reference_models.make(setting["model"]["name"], **setting.get("options", {}))
        if "weights" in setting["model"]:
            reference_models.load_weights(self.model, load_file(setting["model"]["weights"]))
        self.layout = torch.contiguous_format
        if setting["model"]["name"].startswith("resnet"):
            self.layout = torch.channels_last  # as ddprun computes them: the same order of sums
            with torch.no_grad():
                for parameter in self.model.parameters():
                    if parameter.dim() == 4:  # of size 1×1 they lie in both orders; Module.to() would give them other strides than ddprun
                        parameter.data = parameter.contiguous(memory_format=self.layout)
        self.model.to(self.device)  # made on the CPU, as ddprun does: the same initial weights on every device
        self.parallel = DistributedDataParallel(self.model) if world > 1 else self.model
        if setting.get("parallel", {}).get("compress") == "bf16":
            self.parallel.register_comm_hook(None, bf16_compress_hook)
        self.optimizer = make_optimizer(self.train, self.model.parameters(), peak_lr(self.train, world),
                                        setting.get("peer", {}).get("fused", True))
        self.scaler = torch.amp.GradScaler(
            device, init_scale=setting.get("precision", {}).get("loss_scale", 65536.0),
            growth_interval=setting.get("precision", {}).get("loss_scale_growth_steps", 2000), enabled=self.amp == "fp16")
        self.overflowed = torch.zeros((), device=self.device)  # 1: this rank's own gradients of this update have infinite elements
        if self.amp == "fp16" and world > 1:
            for parameter in self.model.parameters():
                parameter.register_hook(self.look_for_overflow)
        decay = self.train.get("ema_decay", 0.0)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(decay)) if decay else None
        if self.ema:
            self.ema.update_parameters(self.model)  # the first call copies: the average begins with the initial weights
        accumulation = self.train.get("accumulation_steps", 1)
        self.steps_per_epoch = -(-len(self.epoch_batches(0)) // accumulation)
        self.schedule = make_schedule(self.train, self.optimizer, self.steps_per_epoch)
        self.checkpoints = setting.get("checkpoints")  # of a run of ddprun, whose state is taken over after each step
        self.lines = []

    def epoch_batches(self, epoch):
        """This rank's batches of sample numbers."""
        sampler = DistributedSampler(range(len(self.samples)), self.world, self.rank, self.data["shuffle"],
                                     self.train["seed"], self.data["drop_last"])
        sampler.set_epoch(epoch)
        order, size = list(sampler), self.data["batch_size"]
        batches = [order[i:i + size] for i in range(0, len(order), size)]
        return [batch for batch in batches if len(batch) == size] if self.data["drop_last"] else batches

    def counts(self, batches):
        """Targets that count (not −100) in each batch, and in all batches of all ranks."""
        mine = [int((self.targets[batch] != -100).sum()) for batch in batches]
        total = torch.tensor(sum(mine), device=self.device)
        if self.world > 1:
            dist.all_reduce(total)
        return mine, total.item()

    def look_for_overflow(self, gradient):
        """Called with what is added to a gradient, before DDP takes the mean over the ranks."""
        self.overflowed.fill_(torch.maximum(self.overflowed, (~gradient.isfinite()).any().float()))

    def overflows(self):
        """On how many ranks the gradients of this update have overflowed."""
        total = self.overflowed.clone()
        dist.all_reduce(total)
        self.overflowed.zero_()
        return int(total.item())

    def micro_step(self, batch, weight, last):
        """Forward and backward of one micro-batch of an update; returns its loss."""
        wait = contextlib.nullcontext() if last or self.world == 1 else self.parallel.no_sync()
        with wait:
            with torch.autocast(self.device.type, DTYPES.get(self.amp, torch.bfloat16), enabled=self.amp != "off"):
                output = self.parallel(self.inputs[batch].contiguous(memory_format=self.layout))
            loss = reference_models.loss(output, self.targets[batch], self.train.get("label_smoothing", 0.0))
            self.scaler.scale(loss * weight).backward()
        return loss.item()

    def update(self, batches):
        """One step of the optimizer; returns its line of metrics.

        The mean is over all targets of the update that count, on all ranks: DDP takes the mean over the ranks, hence `world`.
        """
        counts, total = self.counts(batches)
        weights = [count * self.world / total for count in counts]
        losses = [self.micro_step(batch, weight, i + 1 == len(batches)) for i, (batch, weight) in enumerate(zip(batches, weights))]
        mean = torch.tensor(sum(loss * weight for loss, weight in zip(losses, weights)), dtype=torch.float64, device=self.device)
        if self.world > 1:
            dist.all_reduce(mean)
        line = {"loss": mean.item() / self.world, "lr": self.optimizer.param_groups[0]["lr"]}
        if self.amp == "fp16":
            line["loss_scale"] = self.scaler.get_scale()
            if self.world > 1:
                line["overflows"] = self.overflows()
        if self.train.get("clip_norm", 0.0):
            self.scaler.unscale_(self.optimizer)
            line["grad_norm"] = nn.utils.clip_grad_norm_(self.model.parameters(), self.train["clip_norm"]).item()
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        if self.ema and self.scaler.get_scale() >= before:
            self.ema.update_parameters(self.model)
        return line

    def run(self):
        """All steps; afterwards `lines` has one dict a step."""
        pieces = Pieces(self, self.checkpoints) if self.checkpoints else None
        epoch, steps, accumulation = 0, self.train["steps"], self.train.get("accumulation_steps", 1)
        while len(self.lines) < steps:
            self.inputs, self.targets = (tensor.to(self.device) for tensor in self.samples.at(epoch))
            batches = self.epoch_batches(epoch)
            for i in range(0, len(batches), accumulation):
                self.lines.append(self.update(batches[i:i + accumulation]))
                if pieces:
                    pieces.after(len(self.lines))
                if len(self.lines) == steps:
                    break
            epoch += 1
        self.pieces = pieces.worst if pieces else None

    def optimizer_state(self):
        """`exp_avg.conv.weight` → tensor, as in ddprun's checkpoints."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        state = {f"{key}.{names[id(parameter)]}": value.cpu().clone() for parameter, state in self.optimizer.state.items()
                 for key, value in state.items() if torch.is_tensor(value)}
        scaler = self.scaler.state_dict()  # empty without fp16
        return {**state, **{SCALER[key]: torch.tensor(scaler[key]) for key in SCALER if key in scaler}}

    def state(self):
        """What a checkpoint has: copies of the weights, of the optimizer's state and of the average, with ddprun's names."""
        weights, average = ({key: value.cpu().clone() for key, value in (module.state_dict() if module else {}).items()}
                            for module in (self.model, self.ema and self.ema.module))
        return {"weights": weights, "optimizer": self.optimizer_state(), "ema": average}

    def set_scale(self, tensors):
        """The loss scale of a checkpoint's optimizer state."""
        if self.amp == "fp16":
            self.scaler.load_state_dict({**self.scaler.state_dict(), **{key: tensors[name].item() for key, name in SCALER.items()}})


def evaluate(model, inputs, targets):
    """(loss, accuracy) over the targets that count, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        output = model(inputs)
    counted = targets != -100
    return (reference_models.loss(output, targets).item(), output.argmax(-1)[counted].eq(targets[counted]).double().mean().item())


def result_of(trainer):
    """Everything that is compared, as one dict for torch.save."""
    pieces = {"pieces": trainer.pieces} if trainer.pieces else {}
    return {"world": trainer.world, "lines": trainer.lines, **trainer.state(), **pieces}


def run_rank(rank, world, meeting, jobs, device="cpu"):
    """Runs (setting, data set, file) jobs one after the other as one rank of a group that meets at this URL (Gloo on CPUs, NCCL on
    GPUs); rank 0 saves the results."""
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    if device == "cuda":
        torch.cuda.set_device(rank)
    if world > 1:
        dist.init_process_group("gloo" if device == "cpu" else "nccl", init_method=meeting, rank=rank, world_size=world)
    for setting, samples, path in jobs:
        trainer = ReferenceTrainer(setting, samples, rank, world, device)
        trainer.run()
        if rank == 0:
            torch.save(result_of(trainer), path)
    if world > 1:
        dist.destroy_process_group()
