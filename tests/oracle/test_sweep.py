"""Model types of transformers, built tiny: traced as they compute, to the bit, or refused in words."""

import pytest
from sweep import judge, judged, overall
from tiny_transformers import model_types

# One of each way in which attention is written: PyTorch's, eager only, by hand, with sinks, softcaps, biases,
# two calls, sparse, hybrid, cross, of images and of sound.
SAMPLE = (
    "albert", "bart", "beit", "bert", "bigbird_pegasus", "bloom", "codegen", "deberta", "deepseek_v3",
    "diffllama", "electra", "falcon", "gemma2", "gemma3_text", "gpt2", "gpt_oss", "gptj", "longt5", "mpt",
    "nllb-moe", "opt", "pegasus_x", "qwen3_next", "splinter", "swin", "t5", "vit", "wav2vec2", "whisper",
    "xlnet",
)  # fmt: skip
# Some modelling files of transformers still script a function when they are imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

NEVER = ("WRONG", "CHANGED", "failed", "unseen")


@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_model_type_is_traced_as_it_computes(model_type):
    """Equal weights, and outputs equal to the bit, in every mode it has, with and without padding."""
    runs = judge(model_type)
    assert {name: run.outcome for name, run in runs.items()} == dict.fromkeys(runs, "equal"), runs
    assert any(run.n_compared for run in runs.values())


@pytest.mark.slow
@pytest.mark.parametrize("model_type", model_types())
def test_no_model_type_is_silently_wrong(model_type):
    """Every type that can be built is equal, marked, refused with a reason or without attention."""
    runs = judged(model_type)
    assert overall(runs) not in NEVER, runs
    assert all(run.why for run in runs.values() if run.outcome in ("refused", "unverified"))
