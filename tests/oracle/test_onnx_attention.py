"""The conformance vectors of ONNX's Attention operator, through one adapter.

ONNX adds its mask before it caps the scores; our rule caps first. Where a case has both, the adapter makes
the mask part of the product: query i gets the i-th unit vector appended, every key its column of the mask.
"""

import os
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from regard.attention.scores import DenseBias, ScoreRule
from regard.attention.softmax import attend, weights
from regard.attention.visibility import Visibility
from regard.layers.attention import merge_heads, split_heads
from regard.layers.cache import LayerCache

FOLDER = Path(os.path.dirname(onnx.__file__)) / "backend/test/data/node"
FOUND = sorted(path.name for path in FOLDER.glob("test_attention_*"))

# ONNX writes every case twice: as the operator, and expanded into the operator's definition by simpler ones.
# The second has the same inputs and outputs and would run the same adapter again.
NOT_RUN = {name: "the same vectors as without _expanded" for name in FOUND if name.endswith("_expanded")}
RUN = [name for name in FOUND if name not in NOT_RUN]

# What ONNX's own runner allows (backend/test/loader): one rounding of float16 is 5e-4, of float32 6e-8.
RTOL, ATOL = 1e-3, 1e-7


def test_every_vector_is_run_or_listed():
    """62 cases run; the 62 left out repeat them."""
    assert set(RUN) | set(NOT_RUN) == set(FOUND)
    assert not set(RUN) & set(NOT_RUN)
    assert len(RUN) == 62
    assert {name.removesuffix("_expanded") for name in NOT_RUN} == set(RUN)
    for name in RUN:  # and they do repeat them
        inputs, outputs, _ = case_of(name)
        again, outputs_again, _ = case_of(name + "_expanded")
        assert all(np.array_equal(inputs[key], again[key]) for key in inputs)
        assert all(np.array_equal(outputs[key], outputs_again[key]) for key in outputs)


@cache
def case_of(name):
    """Inputs and outputs by their ONNX names, and the attributes of the one node."""
    model = onnx.load(str(FOLDER / name / "model.onnx"))

    def tensors(kind, values):
        for i, value in enumerate(values):
            proto = onnx.TensorProto()
            proto.ParseFromString((FOLDER / name / "test_data_set_0" / f"{kind}_{i}.pb").read_bytes())
            yield value.name, numpy_helper.to_array(proto)

    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    return (
        dict(tensors("input", model.graph.input)),
        dict(tensors("output", model.graph.output)),
        attributes,
    )


def run_attention(inputs, attributes, path):
    """ONNX's Attention by our door: a dict of every output it names."""
    unknown = set(attributes) - set(
        "is_causal scale softcap q_num_heads kv_num_heads qk_matmul_output_mode softmax_precision".split()
    )
    assert not unknown
    given = {name: torch.from_numpy(array.copy()) for name, array in inputs.items()}
    q, k, v = given["Q"], given["K"], given["V"]
    merged = q.dim() == 3
    if merged:
        q = split_heads(q, attributes["q_num_heads"])
        k, v = (split_heads(t, attributes["kv_num_heads"]) for t in (k, v))
    layer_cache = LayerCache()
    if "past_key" in given:
        layer_cache.append(given["past_key"], given["past_value"])
    k, v, start = layer_cache.append(k, v)

    visible, bias = Visibility(causal=bool(attributes.get("is_causal", 0)), start=start), None
    n_key, mask = k.shape[2], given.get("attn_mask")
    if mask is not None:
        short = n_key - mask.shape[-1]  # a mask that ends early hides the rest
        if mask.dtype == torch.bool:
            seen, bias = Visibility.from_dense(torch.nn.functional.pad(mask, (0, short), value=False)), None
        else:
            seen, bias = Visibility.from_additive(
                torch.nn.functional.pad(mask, (0, short), value=-float("inf"))
            )
        # As a table: a mask that happens to look causal would speak of positions of its own.
        visible = Visibility(dense=seen.tile(slice(0, q.shape[2]), slice(0, n_key))) & visible
    if "nonpad_kv_seqlen" in given:
        visible = visible & Visibility(lengths=given["nonpad_kv_seqlen"])

    softcap = attributes.get("softcap") or None
    rule = ScoreRule(
        scale=attributes.get("scale"),
        visible=visible,
        bias=None if bias is None else DenseBias(bias),
        softcap=softcap,
    )
    asked_q, asked_k = q, k
    if softcap is not None and bias is not None:
        asked_q, asked_k, rule = with_the_mask_in_the_product(q, k, bias, rule)
    if rule.softcap is not None or v.shape[3] != asked_q.shape[3]:
        path = "plain" if path == "fused" else path
    out = attend(asked_q, asked_k, v, rule, path=path).out
    mode = attributes.get("qk_matmul_output_mode", 0)
    scores = {
        0: lambda: ScoreRule(scale=attributes.get("scale")).scores(q, k),
        1: lambda: ScoreRule(scale=rule.scale, visible=rule.visible, bias=rule.bias).scores(q, k),
        2: lambda: rule.scores(asked_q, asked_k),
        3: lambda: weights(asked_q, asked_k, rule),
    }[mode]()
    return {
        "Y": merge_heads(out) if merged else out,
        "present_key": k,
        "present_value": v,
        "qk_matmul_output": scores,
    }


def with_the_mask_in_the_product(q, k, bias, rule):
    """Queries and keys whose plain product is scale * q . k + bias, and a rule that only caps it."""
    batch, n_head, n_query, qk_dim = q.shape
    assert bias.shape[:2] == (1, 1)  # keys of a group share their columns
    units = torch.eye(n_query).expand(batch, n_head, -1, -1)
    columns = bias[0, 0].t().expand(*k.shape[:2], -1, -1)
    longer_q = torch.cat([q * rule.scale_for(qk_dim), units], -1)
    return (
        longer_q,
        torch.cat([k, columns], -1),
        ScoreRule(scale=1.0, visible=rule.visible, softcap=rule.softcap),
    )


@pytest.mark.parametrize("path", ["plain", "tiled", "fused"])
@pytest.mark.parametrize("name", RUN)
def test_the_operators_vectors_come_out(name, path):
    """Every output a case names: Y, the present keys and values, and the scores or weights asked for."""
    inputs, outputs, attributes = case_of(name)
    got = run_attention(inputs, attributes, path)
    assert outputs
    for output, expected in outputs.items():
        result = got[output].to(torch.from_numpy(expected.copy()).dtype).numpy()
        np.testing.assert_allclose(result, expected, rtol=RTOL, atol=ATOL, err_msg=output)
