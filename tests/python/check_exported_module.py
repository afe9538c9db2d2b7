"""Opens an exported module as a user would: its weights are those of the checkpoint, they moved away from the module that the
run began with (the frozen ones did not), and its output is what those weights give."""

import sys

import torch
from safetensors.torch import load_file


def main(exported_path, original_path, checkpoint):
    torch.set_num_threads(1)
    exported, original = torch.jit.load(exported_path), torch.jit.load(original_path)
    weights = load_file(checkpoint + "/model.safetensors")
    state = exported.state_dict()
    assert set(weights) == set(state) - {"second.weight"}, set(weights) ^ set(state)
    for name, tensor in weights.items():
        assert torch.equal(state[name], tensor), name
    assert torch.equal(state["second.weight"], state["first.weight"])
    before = original.state_dict()
    assert not torch.equal(before["first.weight"], state["first.weight"])
    assert torch.equal(before["frozen.weight"], state["frozen.weight"])
    assert state["body.1.num_batches_tracked"] > 0
    images = torch.rand(4, 1, 28, 28)
    exported.eval()
    original.eval()
    output = exported(images)
    assert not torch.allclose(output, original(images))
    original.load_state_dict(state)
    assert torch.equal(output, original(images))
    print("the exported module is the trained one")


main(*sys.argv[1:])
