"""Does again with PyTorch modules what models_python_test wrote down of ddprun's models, and names every difference.

Initial weights must be equal bit for bit. What is computed, in double precision on both sides, may differ in the last bits,
since kernels for other memory layouts add in another order: by 1e-9 of the largest value. The loss is taken in single
precision, so it and the gradients may differ by what that rounds.
"""

import argparse
import json
import sys

import reference_models
import torch
from safetensors import safe_open

OUTPUT_TOLERANCE = 1e-9
GRADIENT_TOLERANCE = 1e-6


def differences(path, seed):
    """Yields a sentence for each difference."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        ours = {name: file.get_tensor(name) for name in file.keys()}
    torch.manual_seed(int(seed or metadata["seed"]))
    model = reference_models.make(**json.loads(metadata["options"]))
    model.train()

    def near(name, value, tolerance):
        if value.shape != ours[name].shape:
            return f"{path}: {name} has another shape"
        if not value.is_floating_point():
            return None if torch.equal(value, ours[name]) else f"{path}: {name} differs"
        difference = (value - ours[name]).abs().max().item()
        limit = tolerance * value.abs().max().item()
        return None if difference <= limit else f"{path}: {name} differs by {difference:.3g}, allowed {limit:.3g}"

    for kind, tensors in (("parameter", dict(model.named_parameters())), ("buffer", dict(model.named_buffers()))):
        names = [name.split("/", 1)[1] for name in ours if name.startswith(kind + "/")]
        if sorted(names) != sorted(tensors):
            yield f"{path}: other {kind}s: {sorted(set(names) ^ set(tensors))}"
            return
        for name, tensor in tensors.items():
            if not torch.equal(tensor, ours[f"{kind}/{name}"]):
                yield f"{path}: initial {name} differs"
    model.double()
    output = model(ours["input"])
    loss = reference_models.loss(output, ours["targets"])
    loss.backward()
    yield near("output", output.detach(), OUTPUT_TOLERANCE)
    yield near("loss", loss.detach(), GRADIENT_TOLERANCE)
    for name, parameter in model.named_parameters():
        yield near("gradient/" + name, parameter.grad, GRADIENT_TOLERANCE)
    for name, buffer in model.named_buffers():
        yield near("moved/" + name, buffer, OUTPUT_TOLERANCE)
    model.eval()
    yield near("evaluated", model(ours["input"]).detach(), OUTPUT_TOLERANCE)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", help="instead of the file's")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = [text for path in arguments.files for text in differences(path, arguments.seed) if text]
    print("\n".join(found) if found else f"{len(arguments.files)} files agree")
    return 1 if found else 0


sys.exit(main())
