"""Traces in files: what was saved comes back, mapped into memory; what was not is refused."""

import ctypes
import json
import os
import re
import struct
import sys
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from regard.attention import feature_map
from regard.attention.scores import Bias, DenseBias, DistanceBias, ScoreRule, SlopeBias, alibi_slopes
from regard.attention.softmax import attend, weights
from regard.attention.visibility import Visibility
from regard.errors import TraceError, UnsupportedError
from regard.files.loading import load
from regard.tracing.layers import DenseLayerTrace, LayerTrace, LinearLayerTrace
from regard.tracing.take import trace
from regard.tracing.traces import LayerCheck, Trace, TraceChecks

BATCH, N_HEAD, N_QUERY, N_KEY, QK_DIM = 2, 6, 11, 13, 5
SEGMENT = torch.arange(N_KEY).div(4, rounding_mode="floor").expand(BATCH, -1).contiguous()
PADDING = torch.arange(N_KEY) < torch.tensor([[13], [9]])
RULES = {
    "plain": ScoreRule(),
    "scale and softcap": ScoreRule(scale=0.7, softcap=3.0),
    "causal window": ScoreRule(visible=Visibility(causal=True, start=2, window=5)),
    "padding": ScoreRule(visible=Visibility(key_mask=PADDING)),
    "lengths": ScoreRule(visible=Visibility(lengths=torch.tensor([0, 7]))),
    "segments": ScoreRule(
        visible=Visibility(query_segment=SEGMENT[:, :N_QUERY].contiguous(), key_segment=SEGMENT)
    ),
    "pairs": ScoreRule(visible=Visibility(dense=torch.rand(1, 1, N_QUERY, N_KEY) < 0.6)),
    "distance": ScoreRule(bias=DistanceBias(torch.randn(N_HEAD, N_QUERY + N_KEY - 1), N_QUERY - 1)),
    "slopes": ScoreRule(bias=SlopeBias(alibi_slopes(N_HEAD))),
    "table": ScoreRule(bias=DenseBias(torch.randn(1, N_HEAD, N_QUERY, N_KEY))),
    "additive": ScoreRule(additive=torch.randn(QK_DIM)),
}


def whole(layer):
    return layer.block(None, slice(0, layer.n_query), slice(0, layer.n_key))


def one_of_each():
    """A trace with a layer of every type and rule."""
    q, k, v = (torch.randn(BATCH, n, size, QK_DIM) for n, size in ((N_HEAD, N_QUERY), (3, N_KEY), (3, N_KEY)))
    layers = [LayerTrace(name, q, k, attend(q, k, v, rule).lse, rule, v) for name, rule in RULES.items()]
    sink = torch.randn(N_HEAD)
    layers.append(LayerTrace("sink", q, k, attend(q, k, v).lse, ScoreRule(sink=sink), kind="cross"))
    for name in ("elu1", "relu", "quadratic", "favor"):
        phi = feature_map(name, qk_dim=QK_DIM, n_feature=17)
        layers.append(LinearLayerTrace.of(name, q, k, v, phi, causal=True, key_mask=PADDING))
    seen = Visibility(causal=True)
    layers.append(DenseLayerTrace("dense", torch.rand(BATCH, N_HEAD, N_QUERY, N_KEY), "cross", seen))
    return Trace(
        tuple(layers),
        tokens=(tuple("abcdefghijk"), ("", "é", "\n", "🙂", *"efghijk")),
        source_tokens=(tuple("0123456789xyz"),) * BATCH,
        ids=torch.arange(22).view(2, 11),
        key_mask=torch.ones(2, 11, dtype=torch.bool),
        text=("one", "two"),
        facts={"name": "model", "n_layer": 3, "trained": False, "licence": None, "scale": 0.5},
        checks=TraceChecks(
            (LayerCheck("plain", 1e-7, 1e-6, 2e-7, 1e-6, 0.0), LayerCheck("x", None, 1.0, 0.0, 1.0, 0.0))
        ),
    )


def test_a_saved_trace_comes_back_whole(tmp_path):
    """Every type of layer and rule, and all that is said of them, bit for bit."""
    before = one_of_each()
    before.save(tmp_path / "a.trace")
    after = Trace.load(tmp_path / "a.trace")
    assert after.names == before.names
    for one, other in zip(before.layers, after.layers, strict=True):
        assert type(one) is type(other)
        assert (one.kind, one.shape) == (other.kind, other.shape)
        assert torch.equal(whole(one), whole(other)), one.name
        for batch, head in ((0, 0), (1, 5)):
            tiles = (head, slice(0, N_QUERY), slice(0, N_KEY), batch)
            assert torch.equal(one.visible(*tiles), other.visible(*tiles)), one.name
    for name in ("tokens", "source_tokens", "text", "facts", "checks"):
        assert getattr(after, name) == getattr(before, name), name
    assert torch.equal(after.ids, before.ids)
    assert torch.equal(after.key_mask, before.key_mask)
    assert torch.equal(after.layers[0].v, before.layers[0].v)


def with_older_names(described):
    """A description of a trace as it was written before `key_mask` and `feature_map` had these names."""
    described["real"] = described.pop("key_mask")
    for layer in described["layers"]:
        if layer["type"] == "linear":
            layer["keys"], layer["kernel"] = layer.pop("key_mask"), layer.pop("feature_map")
        for visible in (layer.get("rule", {}).get("visible"), layer.get("visibility")):
            if visible is not None:
                visible["keys"] = visible.pop("key_mask")


def test_a_file_with_the_older_names_of_fields_comes_back_whole(tmp_path):
    """Files written before fields were renamed give the same weights."""
    before = one_of_each()
    before.save(tmp_path / "a.trace")
    rewritten(tmp_path / "a.trace", lambda metadata, described, tensors: with_older_names(described))
    after = Trace.load(tmp_path / "a.trace")
    assert torch.equal(after.key_mask, before.key_mask)
    for one, other in zip(before.layers, after.layers, strict=True):
        assert torch.equal(whole(one), whole(other)), one.name


@dataclass(frozen=True, repr=False)
class Punished(Bias):
    """A bias of somebody else's: one number for each key."""

    by_key: Tensor
    factor: float = 1.0

    def tile(self, rows, cols, start):
        return (self.by_key[cols] * self.factor).expand(1, 1, rows.stop - rows.start, -1)

    def check(self, batch, n_head, n_query, n_key, start):
        assert self.by_key.shape == (n_key,)


class Parted(Punished):
    """The same, fit to be traced."""

    def part(self, head, batch):
        return self


def test_a_bias_of_somebody_elses_is_traced_and_saved(tmp_path):
    """With the methods of a Bias it is recovered by tile and comes back from a file."""
    q, k, v = (torch.randn(BATCH, n, size, QK_DIM) for n, size in ((N_HEAD, N_QUERY), (3, N_KEY), (3, N_KEY)))
    rule = ScoreRule(bias=Parted(torch.randn(N_KEY), 0.5))
    layer = LayerTrace("layer", q, k, attend(q, k, v, rule).lse, rule)
    assert torch.allclose(layer.weights(4, batch=1), weights(q, k, rule)[1, 4], atol=1e-6)
    Trace((layer,)).save(tmp_path / "a.trace")
    again = Trace.load(tmp_path / "a.trace").layers[0]
    assert isinstance(again.rule.bias, Parted)
    assert torch.equal(again.weights(4, batch=1), layer.weights(4, batch=1))
    assert repr(again.rule) == "ScoreRule(bias=Parted(by_key=float32[13], factor=0.5))"


def test_a_bias_that_lacks_a_method_is_named_with_it(tmp_path):
    """The error says which method a trace misses."""
    q = torch.randn(1, 2, 3, 5)
    layer = LayerTrace("layer", q, q, torch.zeros(1, 2, 3), ScoreRule(bias=Punished(torch.zeros(3))))
    with pytest.raises(UnsupportedError, match=r"Punished has no `part\(batch, head\)`"):
        layer.weights(0)

    class Nothing(Bias):
        tile, check = Punished.tile, Punished.check
        by_key, factor = torch.zeros(3), 1.0

    layer = LayerTrace("layer", q, q, torch.zeros(1, 2, 3), ScoreRule(bias=Nothing()))
    with pytest.raises(UnsupportedError, match="Nothing has no `as_dict`: it must be a dataclass"):
        Trace((layer,)).save(tmp_path / "a.trace")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_captured_trace_gives_the_same_numbers_again(tmp_path, dtype):
    """A real capture, in every storage, saved and reloaded."""
    found = trace(load("bert", random=True), ["some words", "more"], layers=[0, 11], dtype=dtype)
    found.save(tmp_path / "b.trace")
    again = Trace.load(tmp_path / "b.trace")
    assert again.layers[0].q.dtype == dtype
    assert torch.equal(again.weights(1, 7, 1), found.weights(1, 7, 1))
    assert again.tokens == found.tokens
    assert again.checks == found.checks
    again.save(tmp_path / "c.trace")
    assert (tmp_path / "c.trace").read_bytes() == (tmp_path / "b.trace").read_bytes()


def test_a_tensor_that_layers_share_is_stored_once(tmp_path):
    """One visibility for twelve layers takes its bytes once."""
    found = one_of_each()
    found.save(tmp_path / "a.trace")
    assert (tmp_path / "a.trace").stat().st_size < found.bytes + 40_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory from /proc")
def test_a_trace_stays_in_its_file_until_looked_at(tmp_path):
    """Loading 64 MiB takes next to no memory."""
    q = torch.zeros(1, 2, 1 << 16, 64)
    layer = LayerTrace("big", q, q, torch.zeros(1, 2, 1 << 16), ScoreRule())
    Trace((layer,)).save(tmp_path / "big.trace")
    del layer, q
    ctypes.CDLL(None).malloc_trim(0)  # else what was just freed would be there to be used again

    def resident():
        with open("/proc/self/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) * 1024

    before = resident()
    found = Trace.load(tmp_path / "big.trace")
    assert found.bytes > 32 << 20
    assert resident() - before < 8 << 20
    assert float(found.layers[0].q.clone().sum()) == 0
    assert resident() - before > 32 << 20  # what reading it takes does show


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    """A write that fails leaves what was there, and no draft."""
    path = tmp_path / "a.trace"
    found = Trace.from_weights(torch.rand(3, 5))
    found.save(path)
    before = path.read_bytes()

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.tracing.store.os.replace", fails)
    with pytest.raises(TraceError, match="cannot be written"):
        Trace.from_weights(torch.rand(7, 7)).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.trace"]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    """Neither read nor written, with the path in the message."""
    with pytest.raises(TraceError, match=r"there is no file .*gone\.trace"):
        Trace.load(tmp_path / "gone.trace")
    with pytest.raises(TraceError, match="cannot be written"):
        Trace.from_weights(torch.rand(3, 5)).save(tmp_path / "no" / "a.trace")


@given(cut=st.floats(0, 0.999))
def test_a_truncated_file_is_refused(tmp_path_factory, cut):
    """Cut anywhere, it is our error and no other."""
    path = tmp_path_factory.mktemp("cut") / "a.trace"
    Trace.from_weights(torch.rand(2, 3, 5), rows="abc", cols="vwxyz").save(path)
    whole_file = path.read_bytes()
    path.write_bytes(whole_file[: int(cut * len(whole_file))])
    with pytest.raises(TraceError):
        Trace.load(path)


@given(data=st.data())
def test_a_damaged_header_never_gives_another_error(tmp_path_factory, data):
    """A changed byte in the header gives our error, or a trace."""
    path = tmp_path_factory.mktemp("damaged") / "a.trace"
    one_of_each().save(path)
    raw = bytearray(path.read_bytes())
    header = struct.unpack("<Q", raw[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 8 + header - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    try:
        found = Trace.load(path)
    except TraceError:
        return
    assert len(found.layers) == len(found.names)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x00" * 64, b"\xff" * 64], ids=["empty", "text", "0", "255"]
)
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    """Anything that is no safetensors file."""
    path = tmp_path / "a.trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="cannot be read as a trace"):
        Trace.load(path)


def test_a_safetensors_file_that_is_no_trace_is_refused(tmp_path):
    """Weights of a model are not a trace."""
    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TraceError, match=r"no trace.*Got \['format'\]"):
        Trace.load(tmp_path / "model.safetensors")


def rewritten(path, change):
    """The file with its description changed."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    described = json.loads(metadata["regard-trace"])
    change(metadata, described, tensors)
    metadata["regard-trace"] = json.dumps(described)
    save_file(tensors, path, metadata=metadata)


def _set(path, value):
    def change(metadata, described, tensors):
        at = described
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(("version",), 2), r"made by an older Regard.*version 2.*reads version 3"),
        (_set(("layers", 0, "q"), {"regard-tensor": "nowhere"}), "does not fit its tensors"),
        (_set(("layers", 0, "q"), {"regard-tensor": "layers.0.k"}), "does not fit"),
        (_set(("layers", 0, "q"), "layers.0.q"), "q of LayerTrace must be"),
        (_set(("layers", 0, "colour"), "red"), "has no 'colour'"),
        (_set(("layers", 0, "type"), "magic"), "of type 'magic'"),
        (_set(("layers", 0, "kind"), "sideways"), "kind of LayerTrace must be .*Got 'sideways'"),
        (
            _set(("layers", 0, "rule", "visible", "start"), "x"),
            "start of Visibility must be a whole number. Got 'x'",
        ),
        (_set(("layers", 0, "rule", "visible", "window"), -3), "does not fit"),
        (_set(("layers", 0, "rule", "scale"), "big"), "does not fit"),
        (_set(("layers",), 5), "does not fit"),
        (_set(("tokens",), [[1, 2]]), "tokens of Trace must be text. Got 1"),
        (_set(("facts",), {"a": [1]}), "facts of Trace must be"),
        (_set(("checks",), [{"name": "x"}]), "a TraceChecks is described by a mapping"),
        (_set(("checks", "layers"), [{"name": "x"}]), "missing"),
        (
            lambda metadata, described, tensors: tensors.update({"layers.0.lse": torch.zeros(2, 6, 10)}),
            "does not fit",
        ),
        (
            lambda metadata, described, tensors: tensors.update(
                {"layers.0.q": torch.zeros(2, 6, 11, 5).long()}
            ),
            "does not fit",
        ),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path, change, message):
    """Every field is checked against the tensors it speaks of."""
    one_of_each().save(tmp_path / "a.trace")
    rewritten(tmp_path / "a.trace", change)
    with pytest.raises(TraceError, match=message):
        Trace.load(tmp_path / "a.trace")
