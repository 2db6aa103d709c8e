"""Reference, calls and probes of `mha-step`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.checking.trials import Case, Draw
from regard.exercises.shared.steps import probes, trials


def reference(case: Case, *, scale: str = "none") -> tuple[Tensor, Tensor, Tensor]:
    """One token of multi-head attention with a cache (Shazeer 2019, 2.4.1)."""
    x, past_k, past_v, w_q, w_k, w_v, w_o = case.args
    q = torch.einsum("bd,hdk->bhk", x, w_q)
    k = torch.cat([past_k, torch.einsum("bd,hdk->bhk", x, w_k)[:, :, None]], dim=2)
    v = torch.cat([past_v, torch.einsum("bd,hdv->bhv", x, w_v)[:, :, None]], dim=2)
    out = attend(q[:, :, None], k, v, ScoreRule(scale=1.0 if scale == "none" else None)).out
    return torch.einsum("bhv,hvd->bd", out[:, :, 0], w_o), k, v


def make(draw: Draw) -> Case:
    return Case(
        (
            draw.normal("batch", "model_dim"),
            draw.normal("batch", "head", "past", "qk_dim"),
            draw.normal("batch", "head", "past", "v_dim"),
            draw.normal("head", "model_dim", "qk_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "model_dim", "qk_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "model_dim", "v_dim", scale=draw["model_dim"] ** -0.5),
            draw.normal("head", "v_dim", "model_dim", scale=draw["v_dim"] ** -0.5),
        )
    )


TRIALS = trials(make)

PROBES = probes(make)
