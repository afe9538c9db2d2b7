"""Saves TorchScript modules for the tests of model torchscript into a folder: some that train, some that cannot."""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn


class Small(nn.Module):
    """Batch norm, dropout, a frozen and two tied layers; scores for 10 classes of 28×28 images."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1))
        self.frozen = nn.Linear(256, 16)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.fc = nn.Linear(16, 10)

    def forward(self, images):
        x = self.frozen(torch.flatten(self.body(images), 1))
        return self.fc(torch.relu(self.second(torch.relu(self.first(x)))))


class OwnLoss(Small):
    """With its own loss: squared distance from the one-hot target."""

    @torch.jit.export
    def loss(self, output, targets):
        return (output - F.one_hot(targets, 10)).square().mean()


class FewClasses(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, 3)

    def forward(self, images):
        return self.fc(torch.flatten(images, 1))


class Regression(FewClasses):
    """Its loss has no classes."""

    @torch.jit.export
    def loss(self, output, targets):
        return (output.mean(1) - targets).square().mean()


class ReplacesInTraining(Small):
    """Puts a new tensor in a buffer's place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images):
        if self.training:
            self.seen = self.seen + images.size(0)
        x = self.frozen(torch.flatten(self.body(images), 1))
        return self.fc(x)


class ReplacesAlways(FewClasses):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images):
        self.seen = self.seen + images.size(0)
        return self.fc(torch.flatten(images, 1))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, left, right):
        return self.fc(left + right)


class NoParameters(nn.Module):
    def forward(self, images):
        return torch.flatten(images, 1)[:, :10]


class OtherShape(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(100, 10)

    def forward(self, images):
        return self.fc(torch.flatten(images, 1))


class MixesTheBatch(FewClasses):
    def forward(self, images):
        return self.fc(torch.flatten(images, 1)).mean(0)


class DetachedLoss(FewClasses):
    """Nothing that is trained has a part in its loss."""

    @torch.jit.export
    def loss(self, output, targets):
        return output.detach().square().mean()


class NamedOtherwise(nn.Module):
    """Its methods call the module by another name than self."""

    def __init__(this):
        super().__init__()
        this.fc = nn.Linear(784, 10)

    def forward(this, images):
        return this.fc(torch.flatten(images, 1))


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.fc = nn.Linear(784, 10)

    def forward(self, images):
        return self.fc(torch.flatten(images, 1)) * self.factor


class OtherCode(Scaled):
    def forward(self, images):
        return self.fc(torch.flatten(images, 1)) + self.factor


def save_scaled(folder):
    """Functions that differ in nothing, in their weights, in an attribute, in their code."""
    scaled = {"Scaled": 2.0, "ScaledAgain": 2.0, "ScaledMore": 3.0}
    for name, factor in scaled.items():
        torch.jit.script(Scaled(factor)).save(os.path.join(folder, name + ".pt"))
    torch.jit.script(OtherCode(2.0)).save(os.path.join(folder, "OtherCode.pt"))


def main(folder):
    torch.manual_seed(3)
    for kind in (
        Small,
        OwnLoss,
        Regression,
        ReplacesInTraining,
        ReplacesAlways,
        TwoInputs,
        NoParameters,
        OtherShape,
        FewClasses,
        MixesTheBatch,
        DetachedLoss,
        NamedOtherwise,
    ):
        torch.jit.script(kind()).save(os.path.join(folder, kind.__name__ + ".pt"))
    save_scaled(folder)
    traced = torch.jit.trace(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), torch.zeros(5, 1, 28, 28))
    traced.save(os.path.join(folder, "Traced.pt"))


main(sys.argv[1])
