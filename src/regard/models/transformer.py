"""One Transformer. GPT-2, BERT, Llama, T5, Qwen3, Gemma and GPT-NeoX are this file with different configs.

Read `TransformerConfig` for what can differ, `families/` for who differs how.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.data import Ranges, check_fields
from regard.attention.scores import Bias
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers.attention import Record
from regard.layers.block import ACTIVATIONS, Block, BlockConfig, make_norm
from regard.layers.cache import KVCache, LayerCache
from regard.layers.delta import KEEP_BIAS
from regard.layers.eviction import Evict, Evicting
from regard.layers.layer_id import Kind, LayerId
from regard.layers.positions import (
    LearnedPositions,
    RelativeBias,
    Rotary,
    RotaryCosSin,
    RotaryScaling,
    SinusoidalPositions,
)
from regard.models import fast, mechanisms
from regard.models.model import Model, Output, Sizes, check_tokens
from regard.models.pruned import check_kept_heads, fit_pruned


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """What a Transformer is made of; the families differ in these fields.

    Attributes:
        vocab: How many tokens there are.
        block: What each block is made of.
        n_encoder_layer: 0 for a decoder alone, as GPT-2 and Llama.
        n_decoder_layer: 0 for an encoder alone, as BERT; both, as T5.
        positions: How a model knows where tokens are.
        n_position: The longest input; None: no limit.
        rotary_base: Of rotary positions.
        rotary_scaling: How these are stretched for longer texts. None: not at all.
        rotary_dim: How many dimensions of a head are rotated; None: all.
        local: Which of the decoder's layers have `block.window`; None: all.
        local_rotary_base: Of those layers, unscaled; None: as the others.
        full_positions: False: layers that see everything have no positions.
        n_bucket: Of relative positions: how many distances are told apart.
        max_distance: Of relative positions: beyond it all distances are one.
        n_token_type: How many kinds of tokens BERT tells apart, as the sentence they are in; 0: none.
        embed_norm: A norm right after the embeddings (BERT).
        final_norm: A norm after the last block; not where norms come after (BERT).
        lm_head: What the model predicts: the next token ("language"), masked tokens ("masked"), or nothing.
        tied: The matrix of the logits is the embeddings'.
        lm_head_scale: Factor of the last hidden state (T5, tied: model_dim^-1/2).
        lm_head_softcap: Logits become cap * tanh(logit / cap) (Gemma 2); None: as they are.
        embed_scale: Factor of the token vectors (Gemma: model_dim^1/2).
        pooler: BERT's tanh of a projection of the first token.
        family: Whose published format the model has, or "custom".
        kept_heads: Of a pruned model: the heads left, for each of `attention_names`; None: all.
        initial: How weights are drawn before training, see `Transformer.reset_parameters`.

    Raises:
        ArgumentError: If a number is out of range, or fields exclude each other.
    """

    vocab: int
    block: BlockConfig
    n_encoder_layer: int = 0  # 0: decoder only, as GPT-2 and Llama
    n_decoder_layer: int = 0  # 0: encoder only, as BERT; both: T5
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = "learned"
    n_position: int | None = 512  # the longest input; None: no limit (relative positions)
    rotary_base: float = 10_000.0
    rotary_scaling: RotaryScaling | None = None
    rotary_dim: int | None = None  # how many dimensions of a head are rotated; None: all
    local: tuple[bool, ...] | None = None  # the decoder's layers that have `block.window`; None: all
    local_rotary_base: float | None = None  # of those layers, unscaled; None: as the others
    full_positions: bool = True  # False: layers that see everything have no positions
    n_bucket: int = 32  # of relative positions
    max_distance: int = 128
    n_token_type: int = 0  # BERT: which of two sentences a token is in
    embed_norm: bool = False  # BERT: a norm right after the embeddings
    final_norm: bool = True  # a norm after the last block; not where norms come after (BERT)
    lm_head: Literal["language", "masked", "none"] = "language"
    tied: bool = True  # the head's matrix is the embedding's
    lm_head_scale: float = 1.0  # T5 tied: the hidden state times model_dim^-1/2
    lm_head_softcap: float | None = None  # cap * tanh(logit / cap) (Gemma 2)
    embed_scale: float = 1.0  # Gemma: token vectors times model_dim^1/2
    pooler: bool = False  # BERT: tanh of a projection of the first token
    family: str = "custom"
    kept_heads: tuple[tuple[int, ...], ...] | None = None  # pruned: those left, for each of `attention_names`
    # How weights are drawn before training, see `Transformer.reset_parameters`: no part of what is computed.
    initial: Literal["normal", "scaled", "fan_in"] = field(default="normal", compare=False)

    ranges: ClassVar[Ranges] = {
        **dict.fromkeys("vocab n_bucket max_distance".split(), (1, math.inf)),
        **dict.fromkeys("n_encoder_layer n_decoder_layer n_token_type".split(), (0, math.inf)),
        "n_position": (1, 2**24),
        **dict.fromkeys(("rotary_base", "local_rotary_base"), (1, 1e30)),
        "rotary_dim": (2, math.inf),
        "lm_head_softcap": (1e-6, math.inf),
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kept_heads is not None:
            n_attention = self.n_encoder_layer + self.n_decoder_layer * (2 if self.n_encoder_layer else 1)
            check_kept_heads(self.kept_heads, n_attention, self.block.n_head)
        if self.n_encoder_layer + self.n_decoder_layer < 1:
            raise ArgumentError(
                "a Transformer needs at least one layer in its encoder or its decoder. "
                f"Got n_encoder_layer={self.n_encoder_layer}, n_decoder_layer={self.n_decoder_layer}."
            )
        if self.positions in ("learned", "sinusoidal") and self.n_position is None:
            raise ArgumentError(f"{self.positions} positions need a limit: give n_position.")
        if self.local is not None and (len(self.local) != self.n_decoder_layer or self.block.window is None):
            raise ArgumentError(
                "local says of each of the decoder's layers whether it has the block's window. "
                f"Got {len(self.local)} of {self.n_decoder_layer} layers, window {self.block.window}."
            )
        by_layer = self.local_rotary_base is not None or not self.full_positions
        if by_layer and (self.local is None or self.positions != "rotary"):
            raise ArgumentError("rotary positions differ by layer where `local` says which layers differ.")
        if self.kind == "encoder-decoder" and (self.block.latent_dim is not None or self.block.delta):
            raise ArgumentError("latent attention and the delta rule are of models with one stack.")
        if self.block.delta and (self.kind == "encoder" or self.positions in ("rotary", "relative")):
            raise ArgumentError(
                "the delta rule is of decoders, whose positions are learned, sinusoidal or none. "
                f"Got {self.positions} positions and a model that is {self.kind} only."
            )

    def decoder_block(self, layer: int) -> BlockConfig:
        """Return the block of one of the decoder's layers: without the window where it is not local."""
        local = self.local is None or self.local[layer]
        return self.block if local else replace(self.block, window=None)

    @property
    def kind(self) -> Literal["encoder", "decoder", "encoder-decoder"]:
        """Which stacks there are."""
        if not self.n_decoder_layer:
            return "encoder"
        return "encoder-decoder" if self.n_encoder_layer else "decoder"


class Stack(nn.Module):
    """Blocks one after the other, their shared relative positions and last norm: see `Transformer._run`."""

    def __init__(self, config: TransformerConfig, name: Literal["encoder", "decoder"]) -> None:
        super().__init__()
        self.name, causal = name, name == "decoder"
        n_layer = config.n_decoder_layer if causal else config.n_encoder_layer
        self.local = config.local if causal and config.local else (True,) * n_layer
        self.blocks = nn.ModuleList(
            Block(
                config.decoder_block(index) if causal else config.block,
                causal=causal,
                cross=causal and config.kind == "encoder-decoder",
            )
            for index in range(n_layer)
        )
        self.relative = None
        if config.positions == "relative":
            self.relative = RelativeBias(
                config.block.n_head, config.n_bucket, config.max_distance, bidirectional=not causal
            )
        self.norm = make_norm(config.block) if config.final_norm else None


@dataclass(frozen=True, slots=True, eq=False)
class BlockInputs:
    """What every block of a stack is given beside the residual stream.

    Attributes:
        rotary: The rotary cosines and sines of layers that see everything.
        local_rotary: Those of layers with a window.
        visible: Which keys are real, where some are padding.
        memory: The encoder's output, which a decoder's cross-attention reads.
        memory_visible: Which of its positions are real.
        bias: The stack's relative positions.
    """

    rotary: RotaryCosSin | None = None
    local_rotary: RotaryCosSin | None = None
    visible: Visibility | None = None
    memory: Tensor | None = None
    memory_visible: Visibility | None = None
    bias: Bias | None = None


class MaskedHead(nn.Module):
    """BERT's: a projection, activation and norm before the embeddings' matrix, and a bias of its own."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.block.model_dim, config.block.model_dim)
        self.activation = ACTIVATIONS[config.block.activation]
        self.norm = make_norm(config.block)
        self.bias = nn.Parameter(torch.zeros(config.vocab))

    def forward(
        self, hidden: Float[Tensor, "batch position model_dim"]
    ) -> Float[Tensor, "batch position model_dim"]:
        out: Tensor = self.norm(self.activation(self.dense(hidden)))
        return out


class Transformer(Model):
    """An encoder, a decoder or both, over tokens.

    `model(tokens)` for an encoder or a decoder; `model(source, target)` for both. A real token's position is
    the number of real tokens before it, so padding on either side changes nothing. The first weights are
    those its family publishes.

    Args:
        config: What it is made of.

    Example:
        >>> from regard import BlockConfig
        >>> block = BlockConfig(model_dim=8, n_head=2, ff_dim=16)
        >>> model = Transformer(TransformerConfig(vocab=11, block=block, n_decoder_layer=1))
        >>> model(torch.tensor([[3, 5, 7]])).logits.shape
        torch.Size([1, 3, 11])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        block = config.block
        self.config = config
        self.family, self.kind, self.lm_head = config.family, config.kind, config.lm_head
        self.packed: Literal["float32", "float16"] = "float32"  # the weights that decoding reads, see `fast`
        self.token = nn.Embedding(config.vocab, block.model_dim)
        self.position: nn.Module | None = None
        if config.positions in ("learned", "sinusoidal"):
            assert config.n_position is not None  # the config made sure
            table = LearnedPositions if config.positions == "learned" else SinusoidalPositions
            self.position = table(config.n_position, block.model_dim)
        self.rotary = self.local_rotary = None  # of all layers, and of the local ones if they differ
        if config.positions == "rotary":
            rotated = block.latent_rotary_dim or block.qk_dim or block.model_dim // block.n_head
            rotary = partial(Rotary, rotated, rotary_dim=config.rotary_dim)
            usual = rotary(config.rotary_base, config.rotary_scaling)
            self.rotary, self.local_rotary = (usual, None) if config.full_positions else (None, usual)
            if config.local_rotary_base is not None:
                self.local_rotary = rotary(config.local_rotary_base)
        self.token_type = nn.Embedding(config.n_token_type, block.model_dim) if config.n_token_type else None
        self.embed_norm = make_norm(block) if config.embed_norm else None
        self.dropout = nn.Dropout(block.dropout)
        self.encoder = Stack(config, "encoder") if config.n_encoder_layer else None
        self.decoder = Stack(config, "decoder") if config.n_decoder_layer else None
        self.masked_head = MaskedHead(config) if config.lm_head == "masked" else None
        self.unembed = None
        if config.lm_head != "none" and not config.tied:
            self.unembed = nn.Linear(block.model_dim, config.vocab, bias=False)
        self.pooler = nn.Linear(block.model_dim, block.model_dim) if config.pooler else None
        fit_pruned(self)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights that training starts from: biases are 0, norms 1, matrices normally distributed.

        `config.initial` names the standard deviation: "normal" is 0.02 (Devlin et al. 2019), "scaled" divides
        it by sqrt(2 n_layer) where a block writes to the residual stream (Radford et al. 2019, 2.3), "fan_in"
        is n_in^-1/2 (Raffel et al. 2020, code). The matrix that gives the logits has at most what leaves an
        untrained loss near log(vocab).

        Args:
            generator: Source of the random numbers. Default: PyTorch's own.
        """
        block = self.config.block
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.fill_(KEEP_BIAS if block.delta and name.endswith("keep.bias") else 0.0)
            elif "norm" in name:
                parameter.fill_(1.0)
            elif parameter.is_meta:
                continue
            else:
                numbers = torch.empty(parameter.shape).normal_(
                    std=self._initial_std(name), generator=generator
                )
                parameter.copy_(numbers)

    def _initial_std(self, name: str) -> float:
        """Return the standard deviation of one matrix before training."""
        config, block = self.config, self.config.block
        std, n_layer = 0.02, config.n_encoder_layer + config.n_decoder_layer
        if config.initial == "scaled" and name.endswith(("out.weight", "ff.down.weight")):
            std /= math.sqrt(2 * n_layer)
        elif config.initial == "fan_in":
            heads_dim = block.n_head * (block.qk_dim or block.model_dim // block.n_head)
            # Attention without a scale needs smaller queries.
            n_in = {
                "query": block.model_dim * heads_dim // block.n_head,
                "out": heads_dim,
                "down": block.ff_dim,
            }
            std = n_in.get(name.split(".")[-2], block.model_dim) ** -0.5
            if ".attention." in name and (block.latent_dim is not None or block.delta):  # which have scales
                std = self.get_parameter(name).shape[-1] ** -0.5
            std = 1.0 if name == "token.weight" else std
        gives_logits = name == ("token.weight" if config.tied else "unembed.weight")
        return min(std, self._largest_logit_std()) if gives_logits and config.lm_head != "none" else std

    def _largest_logit_std(self) -> float:
        """Return the standard deviation of the logits' matrix that leaves an untrained loss near log(vocab).

        The last hidden state has the length sqrt(model_dim), times `lm_head_scale`. Logits of variance s^2
        add s^2 / 2 to the loss: at most 2 % here. Where the matrix is the embeddings' too, the hidden state
        still points to the token that was read, less so with every block that adds to it, and this token's
        logit adds log(1 + (exp(logit) - 1) / vocab): at most 3 %.
        """
        config, dim = self.config, self.config.block.model_dim
        log_vocab = max(math.log(config.vocab), math.log(2))
        bound = math.sqrt(0.04 * log_vocab / dim)
        if config.tied and config.lm_head == "language":
            n_layer = config.n_decoder_layer or config.n_encoder_layer
            # Weights by fan-in start with embeddings as large as all that blocks add to them.
            kept = 1.0 if config.initial == "fan_in" else 1 / math.sqrt(1 + n_layer)
            bound = min(bound, math.log1p(0.03 * config.vocab * log_vocab) / (dim * kept))
        return bound / config.lm_head_scale

    @property
    def sizes(self) -> Sizes:
        config, block = self.config, self.config.block
        return Sizes(
            n_layer=config.n_encoder_layer + config.n_decoder_layer,
            n_head=block.n_head,
            n_kv_head=block.n_kv_head or block.n_head,
            model_dim=block.model_dim,
            vocab=config.vocab,
            n_position=config.n_position,
        )

    @property
    def attention_names(self) -> list[str]:
        config = self.config
        kinds: tuple[Kind, ...] = ("self",) if self.encoder is None else ("self", "cross")
        read = [LayerId("encoder", index) for index in range(config.n_encoder_layer)]
        written = [LayerId("decoder", at, kind) for at in range(config.n_decoder_layer) for kind in kinds]
        return list(map(str, read + written))

    def new_cache(self) -> KVCache:
        """Return an empty cache for decoding."""
        if self.decoder is None:
            raise UnsupportedError("an encoder sees its whole input at once: it has nothing to cache.")
        return KVCache(self.config.n_decoder_layer)

    def _decoding(self, *given: Any, **options: Any) -> TransformerDecoding:
        return TransformerDecoding(self, *given, **options)

    def forward(
        self,
        tokens: Int[Tensor, "batch position"] | None,
        target: Int[Tensor, "batch target_position"] | None = None,
        *,
        key_mask: Bool[Tensor, "batch key"] | None = None,
        target_key_mask: Bool[Tensor, "batch target_key"] | None = None,
        positions: Int[Tensor, "_batch position"] | None = None,
        token_types: Int[Tensor, "batch position"] | None = None,
        memory: Float[Tensor, "batch memory_position model_dim"] | None = None,
        cache: KVCache | None = None,
        logits: Literal["all", "last", "none"] = "all",
        record: Record | None = None,
        return_layers: bool = False,
    ) -> Output:
        """Compute hidden states and logits.

        Args:
            tokens: ``(batch, position)``, what an encoder or decoder reads; None where `memory` is given.
            target: ``(batch, target_position)``, what the decoder of an encoder-decoder reads.
            key_mask: ``(batch, key)``, False where a token is padding; cached tokens included.
            target_key_mask: ``(batch, target_key)``, the same of the target.
            positions: ``(batch or 1, position)``. Default: how many real tokens are before each.
            token_types: ``(batch, position)``, of BERT. Default: 0.
            memory: ``(batch, memory_position, model_dim)``, the encoder's output, if it was run before.
            cache: Keys and values of earlier tokens; `tokens` are then the new ones, which are added to it.
            logits: Of all positions, of the last, or of none.
            record: Called with what every attention layer used and gave; may return another output.
            return_layers: Whether the output of every block is returned.

        Returns:
            Hidden states, logits, and what else the model has.

        Raises:
            ArgumentError: If tokens are outside of the vocabulary, or an input is missing or one too many.
            ShapeError: If shapes do not fit together.
            UnsupportedError: If the model has no such input.
        """
        run = partial(self._run, record=record)
        layers: list[Tensor] | None = [] if return_layers else None
        if self.decoder is None or self.encoder is None:  # one stack
            if tokens is None or target is not None or memory is not None:
                raise ArgumentError(f"a model that is {self.config.kind} only takes one sequence, `tokens`.")
            stack = self.encoder or self.decoder
            hidden = run(stack, tokens, key_mask, positions, token_types, cache=cache, layers=layers)
        else:
            if memory is None:
                if tokens is None:
                    raise ArgumentError("give the source `tokens`, or the encoder's output as `memory`.")
                memory = run(self.encoder, tokens, key_mask, positions, token_types)
            if target is None:
                return Output(hidden=memory, memory=memory)
            hidden = run(
                self.decoder,
                target,
                target_key_mask,
                None,
                None,
                memory,
                key_mask,
                cache=cache,
                layers=layers,
            )
        return Output(
            hidden=hidden,
            logits=None if logits == "none" else self.logits(hidden if logits == "all" else hidden[:, -1:]),
            pooled=None if self.pooler is None else torch.tanh(self.pooler(hidden[:, 0])),
            memory=memory,
            layers=None if layers is None else tuple(layers),
        )

    def logits(
        self, hidden: Float[Tensor, "batch position model_dim"]
    ) -> Float[Tensor, "batch position vocab"] | None:
        """Compute a score for each word of the vocabulary; None for a model without a head."""
        if self.config.lm_head == "none":
            return None
        if self.masked_head is not None:
            hidden = self.masked_head(hidden)
        if self.config.lm_head_scale != 1.0:
            hidden = hidden * self.config.lm_head_scale
        weight = self.token.weight if self.unembed is None else self.unembed.weight
        bias = None if self.masked_head is None else self.masked_head.bias
        scores = nn.functional.linear(hidden, weight, bias)
        cap = self.config.lm_head_softcap
        return scores if cap is None else cap * torch.tanh(scores / cap)

    def _run(
        self,
        stack: Stack | None,
        tokens: Tensor,
        key_mask: Tensor | None,
        positions: Tensor | None,
        token_types: Tensor | None,
        memory: Tensor | None = None,
        memory_key_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        record: Record | None = None,
        layers: list[Tensor] | None = None,
    ) -> Tensor:
        """Embed the tokens and run them through one stack."""
        assert stack is not None  # the config made sure that there is one
        if cache is not None and stack is self.encoder:
            raise UnsupportedError("an encoder sees its whole input at once: it takes no cache.")
        start = 0 if cache is None else cache.read
        self._check(tokens, key_mask, start)
        if positions is None:  # how many real tokens stand before each
            positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]
            if key_mask is not None:
                positions = (key_mask.long().cumsum(-1) - 1).clamp(min=0)[:, start:]
        x = self.embed(tokens, positions, token_types)
        given = self.block_inputs(stack, positions, start + x.shape[1], key_mask, memory, memory_key_mask)
        for index, block in enumerate(stack.blocks):
            if layers is not None:
                layers.append(x)
            if cache is not None and key_mask is not None:
                n_head = cast(Block, block).attention.n_head
                given = replace(given, visible=cache[index].visibility(key_mask, n_head))
            x = self.run_block(
                stack,
                index,
                x,
                given,
                cache=None if cache is None else cache[index],
                cross_cache=None if cache is None else cache.cross[index],
                record=record,
            )
        x = x if stack.norm is None else stack.norm(x)
        if layers is not None:
            layers.append(x)
        return x

    def block_inputs(
        self,
        stack: Stack,
        positions: Int[Tensor, "_batch position"],
        n_key: int,
        key_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_key_mask: Tensor | None = None,
    ) -> BlockInputs:
        """Compute what every block of a stack is given for queries at `positions`, the last of `n_key`."""
        rotary, local_rotary = self.rotary_cos_sin(positions)
        n_query = positions.shape[1]
        return BlockInputs(
            rotary,
            local_rotary,
            None if key_mask is None else Visibility(key_mask=key_mask),
            memory,
            None if memory_key_mask is None else Visibility(key_mask=memory_key_mask),
            None if stack.relative is None else stack.relative(n_query, n_key, n_key - n_query),
        )

    def run_block(
        self,
        stack: Stack,
        index: int,
        x: Float[Tensor, "batch position model_dim"],
        given: BlockInputs,
        *,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
        record: Record | None = None,
    ) -> Float[Tensor, "batch position model_dim"]:
        """Run one block of a stack: so a run can start at any layer, from the state that another run kept."""
        out: Tensor = stack.blocks[index](
            x,
            given.memory,
            visible=given.visible,
            memory_visible=given.memory_visible,
            bias=given.bias,
            rotary=given.local_rotary if stack.local[index] else given.rotary,
            cache=cache,
            cross_cache=cross_cache,
            record=record,
            name=f"{stack.name}.{index}",
        )
        return out

    def rotary_cos_sin(
        self, positions: Int[Tensor, "_batch position"]
    ) -> tuple[RotaryCosSin | None, RotaryCosSin | None]:
        """Return the rotations of these positions: for layers that see everything, and for local ones."""
        rotary = None if self.rotary is None else self.rotary(positions)
        return rotary, rotary if self.local_rotary is None else self.local_rotary(positions)

    def embed(
        self,
        tokens: Int[Tensor, "batch position"],
        positions: Int[Tensor, "_batch position"],
        token_types: Int[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position model_dim"]:
        """Add token, position and token-type vectors."""
        x: Tensor = self.token(tokens)
        if self.config.embed_scale != 1.0:
            x = x * self.config.embed_scale
        if self.token_type is not None:
            x = x + self.token_type(torch.zeros_like(tokens) if token_types is None else token_types)
        elif token_types is not None:
            raise UnsupportedError("this model knows no token types.")
        if self.position is not None:
            x = x + self.position(positions)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        out: Tensor = self.dropout(x)
        return out

    def _check(self, tokens: Tensor, key_mask: Tensor | None, start: int) -> None:
        check_tokens("tokens", tokens, self.config.vocab)
        n_key = start + tokens.shape[1]
        if key_mask is not None and tuple(key_mask.shape) != (tokens.shape[0], n_key):
            raise ShapeError(
                f"key_mask must cover all {n_key} positions ({start} cached, {tokens.shape[1]} new) of "
                f"{tokens.shape[0]} sequences. Got shape {tuple(key_mask.shape)}."
            )
        limit = self.config.n_position
        # Rotary and relative positions go on beyond the limit, if worse; learned ones end there.
        if self.position is not None and limit is not None and key_mask is None and n_key > limit:
            raise ArgumentError(
                f"{n_key} tokens are more than the model's limit of {limit}: shorten the input."
            )


class TransformerDecoding:
    """One running decode: the cache, and which of its positions are padding."""

    @torch.no_grad()
    def __init__(
        self,
        model: Transformer,
        prompt: Tensor,
        key_mask: Tensor | None,
        record: Record | None = None,
        cache: Evict | None = None,
    ) -> None:
        if model.config.lm_head != "language" or model.decoder is None:
            raise UnsupportedError(
                f"a model that is {model.config.kind} with lm_head {model.config.lm_head!r} generates "
                "no text: only a decoder with a language head does. For masked words use fill_mask."
            )
        self.model, self.record = model, record
        self.cache = model.new_cache()
        self.evicting: Evicting | None = None
        if cache is not None:
            check_evicts(model.config)
            self.record = self.evicting = Evicting(cache, self.cache, model.rotary, record)
        self.key_mask = None if key_mask is None or bool(key_mask.all()) else key_mask
        self.memory: Tensor | None = None
        if model.encoder is not None:
            self.memory = model(prompt, key_mask=self.key_mask, record=record).memory

    @cached_property
    def engine(self) -> fast.Engine | None:
        """What takes a step faster; None: what is recorded or unusual takes the readable path."""
        readable = self.record is not None or (self.key_mask is not None and not fast.finite(self.cache))
        return None if readable else fast.engine(self.model)

    def next(self, tokens: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        """The scores of the token after these, one new token for each sequence."""
        model, both = self.model, self.memory is not None
        if not both and self.key_mask is not None:
            self.key_mask = torch.cat([self.key_mask, self.key_mask.new_ones(tokens.shape[0], 1)], dim=1)
        if self.cache.length and self.engine is not None:
            scores = self.engine.step(model, tokens, self.cache, self.key_mask, memory=both)
            if scores is not None:
                return scores
        return self.feed(tokens[:, None])

    @torch.no_grad()
    def feed(self, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch vocab"]:
        """The scores of the token after the last of these."""
        positions = None
        if self.evicting is not None:
            self.evicting.key_mask = self.key_mask
            positions = self.evicting.positions(tokens.shape[1])
        output = self.model(
            *((tokens,) if self.memory is None else (None, tokens)),
            key_mask=self.key_mask,
            positions=positions,
            memory=self.memory,
            cache=self.cache,
            logits="last",
            record=self.record,
        )
        logits: Tensor = output.logits[:, 0]
        return logits

    def reorder(self, sequences: Int[Tensor, "new_batch"]) -> None:
        """Go on with these sequences in this order, as beam search does."""
        self.cache.reorder(sequences)
        if self.evicting is not None:
            self.evicting.reorder(sequences)
        if self.key_mask is not None:
            self.key_mask = self.key_mask.index_select(0, sequences)
        if self.memory is not None:
            self.memory = self.memory.index_select(0, sequences)


def check_evicts(config: TransformerConfig) -> None:
    """Raise `UnsupportedError` unless a cache of this model can drop positions."""
    reason = mechanisms.why_not(config, "eviction")
    if reason is not None:
        raise UnsupportedError(f"Evict is for decoders that look at all of the past: {reason}.")
