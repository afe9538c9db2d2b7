"""docs/checkpoints.md shows how torch.optim goes on from the optimizer state of a checkpoint. Its lines are run here as they stand: from
ddprun's checkpoint of step 10, with the same samples, PyTorch comes to the weights of ddprun's step 20.
"""

import pathlib
import re
import unittest

import torch
from safetensors.torch import load_file

import parity_run
import parity_settings
import reference_models
from parity_difference import tensor_difference
from reference_trainer import ReferenceTrainer

HALF, STEPS = 10, 20
ALLOWED = 1e-5  # of any tensor of weights; without the state it is above 1e-2
PAGE = parity_run.ROOT / "docs/checkpoints.md"


def recipe():
    """The lines of the page that give the state to an optimizer."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if "optimizer.load_state_dict" in block)


def continued(setting, samples, checkpoint, lines):
    """PyTorch's weights and optimizer state of the last step, from this checkpoint of step HALF; `lines` load the optimizer's state."""
    trainer = ReferenceTrainer(setting, samples)
    reference_models.load_weights(trainer.model, load_file(checkpoint / "model.safetensors"))
    exec(lines, {"torch": torch, "load_file": load_file, "model": trainer.model, "optimizer": trainer.optimizer})  # pylint: disable=exec-used
    trainer.inputs, trainer.targets = samples.at(0)
    for batch in trainer.epoch_batches(0)[HALF:STEPS]:
        trainer.update([batch])
    state = trainer.state()
    del state["weights"]["lm_head.weight"]  # wte.weight
    return state


class CheckpointOptimizerTest(unittest.TestCase):
    def check(self, optimizer):
        train = {**parity_settings.OPTIMIZERS[optimizer], "steps": STEPS}
        setting = parity_run.defaults(parity_settings.setting("gpt", train, checkpoint={"every_steps": HALF, "async": False, "keep": 2}))
        with parity_run.temporary_folder() as folder:
            workshop = parity_run.Workshop("cpu", folder)
            ours = workshop.ddprun(setting, 1)
            checkpoint = pathlib.Path(ours["checkpoints"]) / f"step-{HALF}"
            lines = recipe()
            self.assertIn("step-400", lines)
            theirs = continued(setting, workshop.samples(setting), checkpoint, lines.replace("step-400", str(checkpoint)))
            afresh = continued(setting, workshop.samples(setting), checkpoint, "")
        for part in ("weights", "optimizer"):
            difference, name = tensor_difference(ours[part], theirs[part])
            self.assertLessEqual(difference, ALLOWED, f"{part}: {name}")
        self.assertGreater(tensor_difference(ours["weights"], afresh["weights"])[0], 1000 * ALLOWED)

    def test_momentum(self):
        self.check("SGD, momentum")

    def test_nesterov_and_decay(self):
        self.check("SGD, Nesterov, decay")

    def test_adam(self):
        self.check("Adam")

    def test_adamw(self):
        self.check("AdamW")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
