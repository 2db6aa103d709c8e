"""What a Transformer can be made of, and which tools know it: one row for each mechanism.

    why_not(config, "eviction") -> "a window counts positions that would be gone", or None

A mechanism is declared here once, with the answer of each tool: None, it works, or the reason why not. The
tools ask this table and have no list of their own. A field of a config that no row names fails a test, and so
does an answer that is not so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from regard.layers.block import BlockConfig
from regard.layers.delta import UNTRACED

if TYPE_CHECKING:
    from regard.models.transformer import TransformerConfig

Tool = Literal["tracing", "decoding", "costs", "pruning", "eviction", "circuits", "qk_circuits", "machine"]
TOOLS: tuple[Tool, ...] = get_args(Tool)

_READABLE = "is left to the readable path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One thing that a model may have, and what each tool makes of it: None, it works, or why not.

    Attributes:
        name: What messages call it.
        fields: The fields of a config that declare it; those of a block begin with "block.".
        used: Whether a config has it; given a `BlockConfig` where the fields are a block's.
        tracing: Every attention weight, and interventions (`regard.trace`, `regard.intervene`).
        decoding: Packed decoding, one token at memory speed (`models/fast.py`).
        costs: Operations and bytes by formula (`regard.costs.cost`).
        pruning: Removing heads (`regard.experiments.prune`).
        eviction: A cache that drops positions (`regard.Evict`).
        circuits: What heads write, as matrices (`regard.heads.ov_circuit`, `composition`).
        qk_circuits: What heads look for, as matrices (`regard.heads.qk_circuit`); needs `circuits` too.
        machine: The page's machine: what a head adds to the residual stream, key by key.
    """

    name: str
    fields: tuple[str, ...]
    used: Callable[[Any], bool]
    tracing: str | None
    decoding: str | None
    costs: str | None
    pruning: str | None
    eviction: str | None
    circuits: str | None
    qk_circuits: str | None
    machine: str | None

    @property
    def of_block(self) -> bool:
        """Whether each block has it, rather than the model around them."""
        return self.fields[0].startswith("block.")


def _known(name: str, *fields: str, used: Callable[[Any], bool], **reasons: str) -> Mechanism:
    """Return a mechanism that every tool knows but those for which a reason is given."""
    answers: dict[str, Any] = dict.fromkeys(TOOLS)
    if "circuits" in reasons:
        reasons["qk_circuits"] = reasons["circuits"]
    return Mechanism(name=name, fields=fields, used=used, **(answers | reasons))


MECHANISMS: tuple[Mechanism, ...] = (
    _known("shared key heads", "block.n_kv_head", used=lambda b: b.n_kv_head not in (None, b.n_head)),
    _known(
        "values of another size than queries",
        "block.v_dim",
        used=lambda b: (b.v_dim or b.model_dim // b.n_head) != (b.qk_dim or b.model_dim // b.n_head),
        decoding="the attention kernel needs v_dim = qk_dim",
    ),
    _known(
        "norms after the sum",
        "block.norm_first",
        used=lambda b: not b.norm_first,
        circuits="a norm follows every sum, so the residual stream is not a sum of what heads write",
        machine="a norm follows what a head adds",
    ),
    _known(
        "norms on what layers give",
        "block.norm_after",
        used=lambda b: b.norm_after,
        circuits="a norm stands between a head's output and the residual stream",
        machine="a norm stands between a head's output and the residual stream",
    ),
    _known("parallel blocks", "block.parallel", used=lambda b: b.parallel),
    _known("a gated feed-forward", "block.gated", used=lambda b: b.gated),
    _known(
        "linear attention",
        "block.feature_map",
        used=lambda b: b.feature_map is not None,
        decoding=f"linear attention {_READABLE}",
        eviction="linear attention keeps a sum of the past, not its positions",
        circuits="linear attention has no scores that are products of queries and keys",
    ),
    _known(
        "latent attention",
        "block.latent_dim",
        "block.latent_rotary_dim",
        used=lambda b: b.latent_dim is not None,
        decoding=f"latent attention {_READABLE}",
        costs="the formulas count latent attention where `cost` is given it as `latent`, not in a block",
        pruning="heads of latent attention are not pruned",
        eviction="the cache of latent attention holds vectors that all heads share, not their keys",
        circuits="a norm stands between the matrices that latent attention makes its keys and values with",
        machine="latent attention makes its keys in two steps, which the machine does not show",
    ),
    _known(
        "the delta rule",
        "block.delta",
        used=lambda b: b.delta,
        tracing=UNTRACED,
        decoding=f"the delta rule {_READABLE}",
        costs="the formulas do not count the delta rule",
        pruning="heads with the delta rule are not pruned",
        eviction="the delta rule keeps a state of the past, not its positions",
        circuits="the delta rule has no scores that are products of queries and keys",
        machine=UNTRACED,
    ),
    _known(
        "a sliding window",
        "block.window",
        used=lambda b: b.window is not None,
        eviction="a window counts positions that would be gone",
    ),
    _known(
        "a softcap of scores",
        "block.softcap",
        used=lambda b: b.softcap is not None,
        decoding=f"a softcap of scores {_READABLE}",
    ),
    _known(
        "norms of queries and keys",
        "block.qk_norm",
        used=lambda b: b.qk_norm,
        qk_circuits="a norm follows the matrices of queries and keys",
    ),
    _known(
        "learned sinks",
        "block.sinks",
        used=lambda b: b.sinks,
        decoding=f"a sink {_READABLE}",
        pruning="heads with learned sinks are not pruned",
    ),
    _known(
        "ALiBi",
        "block.alibi",
        used=lambda b: b.alibi,
        decoding=f"ALiBi {_READABLE}",
        pruning="heads with ALiBi's slopes are not pruned",
        eviction="ALiBi counts positions that would be gone",
    ),
    _known(
        "an output gate",
        "block.output_gate",
        used=lambda b: b.output_gate,
        decoding=f"an output gate {_READABLE}",
        pruning="heads with an output gate are not pruned",
        circuits="a gate multiplies what a head gives before its output matrix",
        machine="a gate multiplies what a head gives before its output matrix",
    ),
    _known(
        "an encoder and a decoder",
        "n_encoder_layer",
        "n_decoder_layer",
        used=lambda c: c.kind == "encoder-decoder",
        eviction="an encoder-decoder reads its prompt with the encoder",
        circuits="circuits are of decoders with a language head",
    ),
    _known(
        "relative positions",
        "positions",
        "n_bucket",
        "max_distance",
        used=lambda c: c.positions == "relative",
        eviction="relative positions are counted over all keys",
    ),
    _known(
        "scaled rotary positions",
        "rotary_scaling",
        used=lambda c: c.rotary_scaling is not None and c.rotary_scaling.kind in ("dynamic", "yarn"),
        eviction="dynamic and yarn scaling rotate keys by more than their positions",
        qk_circuits="dynamic and yarn scaling change queries and keys beyond a rotation by their positions",
    ),
    _known("partly rotated heads", "rotary_dim", used=lambda c: c.rotary_dim is not None),
    _known(
        "layers with and without a window",
        "local",
        "local_rotary_base",
        "full_positions",
        used=lambda c: c.local is not None and len(set(c.local)) > 1,
        costs="the formulas count layers that are the same, and of these some have a window and some have "
        "none: `regard cost --model FOLDER` counts such a model by running it",
        eviction="a window counts positions that would be gone",
    ),
    _known(
        "token types",
        "n_token_type",
        used=lambda c: c.n_token_type > 0,
        decoding=f"an embedding of token types {_READABLE}",
    ),
    _known(
        "a softcap of logits",
        "lm_head_softcap",
        used=lambda c: c.lm_head_softcap is not None,
        decoding=f"a softcap of logits {_READABLE}",
        circuits="logits with a softcap are not linear in the residual stream",
    ),
    _known(
        "pruned heads",
        "kept_heads",
        used=lambda c: c.kept_heads is not None,
        decoding="attention layers differ, as after pruning",
        costs="the cost of a pruned model differs from layer to layer: it is not computed",
        eviction="pruned layers may have keys that no even group of heads shares",
        circuits="circuits are of models with all their heads, and this one is pruned",
    ),
)

# Fields that every tool takes as they come: sizes, numbers, and what stands before and after the blocks.
PLAIN = frozenset(
    """vocab block n_position rotary_base embed_norm final_norm lm_head tied lm_head_scale embed_scale pooler
    family initial block.model_dim block.n_head block.ff_dim block.qk_dim block.norm block.norm_eps
    block.activation block.attention_bias block.out_bias block.ff_bias block.scale block.dropout""".split()
)


def why_not(config: TransformerConfig | BlockConfig, tool: Tool) -> str | None:
    """Return the reason why `tool` does not know something that this config has, or None.

    Args:
        config: Of a model, or of one block.
        tool: A column of the table.

    Returns:
        The first reason, as a clause without a full stop, or None where it knows all of it.

    Example:
        >>> why_not(BlockConfig(model_dim=8, n_head=2, ff_dim=8, window=3), "eviction")
        'a window counts positions that would be gone'
        >>> why_not(BlockConfig(model_dim=8, n_head=2, ff_dim=8), "eviction") is None
        True
    """
    block = config if isinstance(config, BlockConfig) else config.block
    for mechanism in MECHANISMS:
        reason: str | None = getattr(mechanism, tool)
        if reason is None:
            continue
        if mechanism.of_block:
            if mechanism.used(block):
                return reason
        elif config is not block and mechanism.used(config):
            return reason
    return None
