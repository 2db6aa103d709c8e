"""`compile = true`: the same training, compiled."""

import shutil

import pytest
import torch

from regard.train.batches import Batches, BlockExamples
from regard.train.build import Objective, build_model
from regard.train.distributed import World
from regard.train.loop import Training
from regard.train.settings import Settings
from regard.train.vocabulary import train_tokenizer

# Three warnings that torch's compiler causes itself, whatever it compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function:DeprecationWarning"),
]
no_compiler = shutil.which("g++") is None and shutil.which("clang++") is None
SIZES = {"model_dim": 12, "n_head": 3, "n_layer": 2, "context": 13}


def losses(compiled):
    """Those of some updates of a small GPT-2."""
    settings = Settings.of("lm", {"text": "unused", "compile": compiled, **SIZES})
    tokenizer = train_tokenizer("char", ["abcdefghijklmnopq"])
    tokens = torch.randint(7, 24, (997,), generator=torch.Generator().manual_seed(5)).numpy()
    objective = Objective(build_model(settings, tokenizer))
    batches = Batches(BlockExamples(tokens, 13, seed=0), 91, 0, pad=0)
    training = Training(objective, batches, settings, World(), torch.device("cpu"))
    return [training.update()["loss"] for _ in range(5)]


@pytest.mark.slow  # compiling takes a while
@pytest.mark.skipif(no_compiler, reason="torch.compile's default backend needs a C++ compiler")
def test_compiled_training_has_the_losses_of_plain_training():
    """Update by update, to rounding."""
    assert losses(True) == pytest.approx(losses(False), rel=1e-4)  # float32, operations fused otherwise
