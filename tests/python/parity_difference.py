"""Distances between numbers and between sets of tensors."""

import torch


class ParityError(Exception):
    """A run that did not do what it should have."""


def relative(ours, theirs):
    """|ours − theirs| / |theirs|; infinite where one of them is no number and the other is."""
    if ours is None:  # JSON's way to write what is not finite
        return 0.0 if theirs - theirs != 0 else float("inf")
    return abs(ours - theirs) / max(abs(theirs), 1e-30)


def need_same_names(ours, theirs):
    missing = sorted(set(ours) ^ set(theirs))
    if missing:
        raise ParityError(f"tensors that only one side has: {missing[:6]}")


def decisive(name, value):
    """The elements that can make a difference. The bias of keys adds the same to all scores of a query, which softmax takes away:
    its gradient is nothing but rounding errors, and where Adam divides them by their own size, so is its value."""
    if value.dim() and name.endswith(("qkv.bias", "c_attn.bias")):
        query, _, values = value.chunk(3)
        return torch.cat([query, values])
    return value.flatten()


def tensor_difference(ours, theirs):
    """The largest ‖ours − theirs‖ / ‖theirs‖ over the tensors, and its name. Integers must be equal."""
    need_same_names(ours, theirs)
    worst = (0.0, "")
    for name, value in theirs.items():
        mine, value = decisive(name, ours[name]).double(), decisive(name, value).double()
        distance, size = (mine - value).norm().item(), value.norm().item()
        worst = max(worst, (0.0 if distance == 0 else distance / size if size > 0 else float("inf"), name))
    return worst


def change_difference(before, ours, theirs):
    """‖ours − theirs‖ / ‖theirs − before‖ over all tensors together: how far apart two changes of the same tensors are."""
    apart = sum((ours[name].double() - value.double()).square().sum().item() for name, value in theirs.items())
    moved = sum((value.double() - before[name].double()).square().sum().item() for name, value in theirs.items())
    return (apart / moved) ** 0.5 if moved > 0 else 0.0 if apart == 0 else float("inf")
