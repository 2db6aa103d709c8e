"""Models of other libraries, tiny and random: each traced, and compared with the softmax calls it makes.

    python tests/oracle/peers.py timm      a line for each model, in an environment that has the library

A spy on softmax says what the weights are, in the mode in which the library writes attention out; the trace
is taken in that mode and as the library runs by itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
from sweep import Spy, _missing, _same, _tensors
from tiny_transformers import widen

from regard.tracing.take import trace

# A model as the library runs it, the same with attention written out, and what it is given.
Case = tuple[str, nn.Module, nn.Module, tuple[torch.Tensor, ...]]


def without_kernels() -> None:
    """torchvision of one build beside torch of another lacks its own kernels, which no model here needs."""
    with suppress(RuntimeError):  # it has them
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        without_kernels.library = library  # type: ignore[attr-defined]


def timm() -> Iterator[Case]:
    without_kernels()
    import timm
    from timm.layers import set_fused_attn

    small = {"img_size": 64, "num_classes": 7}
    makers = {
        "vit_tiny_patch16_224": {"depth": 2},
        "deit_tiny_distilled_patch16_224": {"depth": 2},
        "beit_base_patch16_224": {"depth": 2, "embed_dim": 48, "num_heads": 3},
        "eva02_tiny_patch14_224": {"depth": 2, "img_size": 56},
        "cait_xxs24_224": {"depth": 2},
        "swin_tiny_patch4_window7_224": {"depths": (1, 2, 1, 1), "window_size": 4},
        "swinv2_tiny_window8_256": {"depths": (1, 2, 1, 1), "window_size": 4},
        "pvt_v2_b0": {"img_size": None},
        "mvitv2_tiny": {},
        "levit_128s": {"img_size": 224},
        "xcit_nano_12_p16_224": {"depth": 2},
        "vit_base_patch16_siglip_224": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    }
    for name, options in makers.items():
        chosen = {key: value for key, value in {**small, **options}.items() if value is not None}
        models = []
        for fused in (True, False):
            set_fused_attn(fused)
            torch.manual_seed(0)
            models.append(timm.create_model(name, **chosen))
        side = chosen.get("img_size", 64)
        yield name, models[0], models[1], (torch.randn(2, 3, side, side),)


def open_clip() -> Iterator[Case]:
    without_kernels()
    import open_clip
    from open_clip.coca_model import MultimodalCfg

    vision = {"image_size": 32, "layers": 2, "width": 48, "head_width": 16, "patch_size": 8}
    text = {"context_length": 13, "vocab_size": 99, "width": 48, "heads": 3, "layers": 2}
    image, ids = torch.randn(2, 3, 32, 32), torch.randint(1, 99, (2, 13))
    for name, more in {
        "plain": {},
        "attention pooling": {"attentional_pool": True, "attn_pooler_heads": 3, "attn_pooler_queries": 5},
        "scaled heads": {"block_type": "custom", "qk_norm": True, "scale_heads": True},
    }.items():
        torch.manual_seed(0)
        model = open_clip.CLIP(48, {**vision, **more}, dict(text))
        yield f"CLIP, {name}", model, model, (image, ids)
    torch.manual_seed(0)
    both = MultimodalCfg(width=48, heads=3, layers=2, context_length=13, vocab_size=99)
    pooled = {**vision, "attentional_pool": True, "attn_pooler_heads": 3}
    coca = open_clip.CoCa(
        48, both, {**text, "embed_cls": True, "output_tokens": True}, {**pooled, "output_tokens": True}
    )
    yield "CoCa", coca, coca, (image, ids)


def x_transformers() -> Iterator[Case]:
    from x_transformers import Decoder, Encoder, TransformerWrapper, XTransformer

    ids = torch.randint(1, 99, (2, 13))
    for name, (stack, options) in {
        "decoder": (Decoder, {}),
        "encoder": (Encoder, {}),
        "rotary": (Decoder, {"rotary_pos_emb": True}),
        "alibi": (Decoder, {"alibi_pos_bias": True}),
        "relative": (Encoder, {"rel_pos_bias": True}),
        "one key head": (Decoder, {"attn_one_kv_head": True}),
        "memories": (Decoder, {"attn_num_mem_kv": 3}),
        "qk norm": (Decoder, {"attn_qk_norm": True}),
        "talking heads": (Decoder, {"attn_pre_talking_heads": True, "attn_post_talking_heads": True}),
        "gated": (Decoder, {"attn_gate_values": True}),
        "sparse": (Decoder, {"attn_sparse_topk": 3}),
        "macaron": (Encoder, {"macaron": True}),
    }.items():
        models = []
        for flash in (True, False):
            torch.manual_seed(0)
            with suppress(AssertionError):  # some options have no fused form
                attend = stack(dim=48, depth=2, heads=3, attn_dim_head=16, attn_flash=flash, **options)
                models.append(TransformerWrapper(num_tokens=99, max_seq_len=32, attn_layers=attend))
        yield name, models[0], models[-1], (ids,)
    torch.manual_seed(0)
    both = XTransformer(
        dim=48, enc_num_tokens=99, enc_depth=2, enc_heads=3, enc_max_seq_len=32,
        dec_num_tokens=99, dec_depth=2, dec_heads=3, dec_max_seq_len=32,
    )  # fmt: skip
    yield "encoder-decoder", both, both, (ids, ids[:, :7])


class SelfAttention(nn.Module):
    """Causal attention as small training scripts write it: the fused call, or four lines."""

    def __init__(self, width: int, n_head: int, flash: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.n_head, self.flash = n_head, flash
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.ones(32, 32).tril().view(1, 1, 32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.n_head, -1).transpose(1, 2) for part in self.qkv(x).split(width, 2)
        )
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * k.size(-1) ** -0.5
            scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
            y = self.dropout(F.softmax(scores, dim=-1)) @ v
        out: torch.Tensor = self.out(y.transpose(1, 2).contiguous().view(batch, length, width))
        return out


class SmallGPT(nn.Module):
    """Embeddings, blocks with the norm first, one matrix for both ends."""

    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(99, 48), nn.Embedding(32, 48)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "norm": nn.LayerNorm(48), "attn": SelfAttention(48, 3, flash), "norm2": nn.LayerNorm(48),
                "mlp": nn.Sequential(nn.Linear(48, 192), nn.GELU(), nn.Linear(192, 48)),
            })
            for _ in range(2)
        )  # fmt: skip

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = x + block["attn"](block["norm"](x))
            x = x + block["mlp"](block["norm2"](x))
        return F.linear(x, self.token.weight)


def nanogpt() -> Iterator[Case]:
    models = []
    for flash in (True, False):
        torch.manual_seed(0)
        models.append(SmallGPT(flash))
    yield "small GPT", models[0], models[1], (torch.randint(0, 99, (2, 13)),)


PEERS: dict[str, Callable[[], Iterator[Case]]] = {
    "timm": timm, "open_clip": open_clip, "x_transformers": x_transformers, "nanogpt": nanogpt,
}  # fmt: skip


@contextmanager
def asked_for_weights(spy: Spy, model: nn.Module) -> Iterator[None]:
    """A block in which every nn.MultiheadAttention, in which no softmax is seen, is asked for its weights."""

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        asked = {**kwargs, "need_weights": True, "average_attn_weights": False}
        spy.weights.append(module.forward(*args, **asked)[1])
        spy.places.append(spy.names[id(module)])

    modules = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    handles = [module.register_forward_hook(ask, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def compared(model: nn.Module, plain: nn.Module, given: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """A trace of `model` beside the softmax calls of `plain`, the same with attention written out."""
    plain.load_state_dict(model.state_dict())
    spy = Spy(plain)
    with spy, asked_for_weights(spy, plain):
        plain(*given)
    wanted = list(_tensors(model(*given)))
    outs: list[torch.Tensor] = []
    handle = model.register_forward_hook(lambda module, args, out: outs.extend(_tensors(out)))
    traced = trace(model, given)
    handle.remove()
    missing = _missing(traced, spy.weights, None)
    return {
        "n_softmax": len(spy.weights),
        "n_layer": traced.n_layer,
        "same_output": len(wanted) == len(outs) and all(map(_same, wanted, outs)),
        "passed": traced.checks.passed,
        "missing": {spy.places[index]: text for index, text in missing.items()},
        "marks": "; ".join([*traced.marks.values(), str(traced.facts.get("other_softmax", ""))]),
    }


def main() -> None:
    torch.set_num_threads(1)
    for name, fused, plain, given in PEERS[sys.argv[1]]():
        for model in (fused, plain):
            widen(model.eval())
            plain.eval()
            print(
                json.dumps({"model": name, "fused": model is fused, **compared(model, plain, given)}),
                flush=True,
            )


if __name__ == "__main__":
    main()
