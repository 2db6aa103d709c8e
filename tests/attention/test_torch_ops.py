"""What PyTorch may lack: asked for in one file, and every result the same without it."""

import ast
from functools import cache, partial
from pathlib import Path

import pytest
import torch

import regard
from regard import Visibility, attend, generate, load
from regard.attention import torch_ops
from regard.attention.scores import ScoreRule
from regard.attention.torch_ops import _operator
from regard.layers.block import BlockConfig
from regard.models.families import initialise
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.recurrent import GRUWeights, LSTMWeights, gru_forward, lstm_forward

SOURCE = Path(regard.__file__).parent
OPERATIONS = sorted(name for name in vars(torch_ops) if name.isupper() and name != "SEQUENCE")
MISSING = [*OPERATIONS, *torch_ops.SEQUENCE, "everything"]

# Sums of up to a few hundred terms, in another order: one rounding for each, relative to the largest number.
N_TERM = 300


@pytest.fixture(autouse=True)
def _packed_at_once(monkeypatch):
    """Decoding makes products of small matrices, too, as it does those of large ones."""
    monkeypatch.setattr("regard.models.packing._SMALL", 0)


def take_away(missing, monkeypatch):
    """Leave PyTorch as a version, build or processor without that operation would have it."""
    for name in OPERATIONS if missing == "everything" else {missing} & set(OPERATIONS):
        monkeypatch.setattr(torch_ops, name, None)
    for mode in torch_ops.SEQUENCE if missing == "everything" else {missing} & set(torch_ops.SEQUENCE):
        monkeypatch.setitem(torch_ops.SEQUENCE, mode, None)


def same(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        error = N_TERM * torch.finfo(one.dtype).eps * max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one, other, rtol=0, atol=error)


def attention():
    """Every path that `attend` chooses by itself: plain, causal, padded, one query."""
    found = []
    for n_query, rule in (
        (7, ScoreRule()),
        (7, ScoreRule(visible=Visibility(causal=True))),
        (7, ScoreRule(visible=Visibility(lengths=torch.tensor([5, 11])))),
        (1, ScoreRule(visible=Visibility(causal=True, start=10))),
    ):
        leaves = [torch.randn(2, h, n, 13, requires_grad=True) for h, n in ((6, n_query), (3, 11), (3, 11))]
        out, lse = attend(*leaves, rule)
        found += [out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), leaves)]
        with torch.no_grad():
            found += attend(*leaves, rule)
    return found


def recurrences():
    """Whole sequences of each cell, by function and as an encoder and decoder of layers, with gradients."""
    found = []
    forms = {
        partial(lstm_forward, cells=False): (LSTMWeights, 2, 4),
        partial(gru_forward, reset_after=True): (GRUWeights, 1, 3),
    }
    for forward, (kind, n_state, n_gate) in forms.items():
        shapes = [(7, 3, 5)] + [(3, 11)] * n_state + [(5, 11), (11, 11), (11,)] * n_gate
        leaves = [(torch.randn(shape) / 3).requires_grad_() for shape in shapes]
        result = forward(*leaves[: 1 + n_state], kind(*leaves[1 + n_state :]))
        outputs = result if isinstance(result, tuple) else (result,)
        found += [*outputs, *torch.autograd.grad(sum(output.square().sum() for output in outputs), leaves)]
    visible = torch.arange(7) < torch.tensor([7, 2, 5])[:, None]
    for cell in ("gru", "lstm", "rnn"):
        config = Seq2SeqConfig(
            source_vocab=31, target_vocab=13, embed_dim=17, hidden_dim=19, cell=cell, bos=1
        )
        model = Seq2Seq(config).eval()
        source, target = torch.randint(31, (3, 7)), torch.randint(13, (3, 5))
        logits = model(source, target, key_mask=visible).logits
        found += [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]
    return found


def decoding():
    """Scores of each new token, for more rows than a plain product is used for."""
    block = BlockConfig(model_dim=60, n_head=6, n_kv_head=3, ff_dim=53, norm="rms", gated=True)
    config = TransformerConfig(37, block, n_decoder_layer=2, positions="rotary", n_position=None)
    model = initialise(Transformer(config), seed=0).eval()  # a new one, whose matrices nobody packed yet
    _, running = model.begin(torch.randint(37, (3, 5)))
    with torch.no_grad():
        return [running.next(torch.randint(37, (3,))) for _ in range(3)]


@cache
def with_everything(work):
    torch.manual_seed(0)
    return work()


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("work", [attention, recurrences, decoding], ids=lambda work: work.__name__)
def test_every_result_is_the_same_without_it(work, missing, monkeypatch):
    """One operation is taken away, or all of them: outputs and gradients stay, to rounding."""
    wanted = with_everything(work)
    take_away(missing, monkeypatch)
    torch.manual_seed(0)
    same(work(), wanted)


@pytest.mark.parametrize("missing", ["HALF_PACK", "HALF_LINEAR"])
def test_without_float16_matrices_decoding_is_that_of_float32(missing, monkeypatch):
    """Nothing fails, and nothing is rounded."""
    take_away(missing, monkeypatch)
    texts = [
        generate(load("pocket-gpt", packed=packed), "A hacker", max_new=7).texts
        for packed in ("float32", "float16")
    ]
    assert texts[0] == texts[1]


def test_an_operator_that_does_not_exist_is_none():
    """A name that this PyTorch lacks is not an error at import."""
    assert _operator("aten", "_no_such_operator") is None
    assert _operator("no_such_space", "_no_such_operator") is None


def private(source):
    """What a file names of `torch.ops`, `torch._anything` and the undocumented whole-sequence operations."""
    found = []
    for node in ast.walk(ast.parse(source)):
        name, *parts = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else [""]
        hidden = [part for part in parts if part.startswith("_") and not part.startswith("__")]
        if name == "torch" and (hidden or parts[0] in ("ops", "rnn_tanh", "lstm", "gru")):
            found.append(ast.unparse(node))
    return found


def test_no_other_file_asks_pytorch_for_such_an_operation():
    """Only torch_ops.py does; and the child that runs answers, which cannot import us."""
    users = {path.name for path in SOURCE.rglob("*.py") if private(path.read_text(encoding="utf-8"))}
    assert users == {"torch_ops.py", "harness.py", "uncompiled.py", "watcher.py"}
