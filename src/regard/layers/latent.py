"""Multi-head latent attention (DeepSeek-AI 2024, 2.1): keys and values made from one short vector a token.

    c_t = norm(W_down x_t)                    the latent vector, of `latent_dim` numbers for all heads
    k_t = [W_uk c_t; turned W_kr x_t]         the second part carries the position, and all heads share it
    v_t = W_uv c_t

The cache holds c_t and the turned part alone. Written out, every key and value is made anew (naive). Because
q . (W_uk c) = (W_uk^T q) . c, the matrices may go to the side of the queries instead (absorbed): then all
heads look at one key of latent_dim + rotary_dim numbers, whose value is c, as in multi-query attention. Both
give the same numbers, to rounding; absorbed costs less where few queries look at many cached positions.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.attention.scores import Bias, ScoreRule
from regard.attention.shapes import Vectors, check_dropout, check_sizes
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.layers.attention import Record, check_input, merge_heads, reported, rule_at, split_heads
from regard.layers.cache import LayerCache
from regard.layers.positions import RotaryCosSin


class LatentAttention(nn.Module):
    """Self-attention whose cache holds `latent_dim + rotary_dim` numbers per token, however many heads.

    A head's queries and keys have `qk_dim` dimensions without position, and `rotary_dim` more that are
    rotated.

    Example:
        >>> layer = LatentAttention(8, n_head=4, latent_dim=6, rotary_dim=2, qk_dim=4, v_dim=3)
        >>> layer(torch.randn(1, 5, 8)).shape
        torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        model_dim: int,
        n_head: int,
        *,
        latent_dim: int,
        rotary_dim: int,
        qk_dim: int,
        v_dim: int,
        query_latent_dim: int | None = None,
        bias: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        causal: bool = True,
    ) -> None:
        """Create the layer with freshly initialised projections.

        Args:
            model_dim: Size of the input and output vectors.
            n_head: Number of heads.
            latent_dim: Size of the latent vector from which all heads' keys and values are made.
            rotary_dim: Number of dimensions of queries and keys that are rotated; all heads share those of
                the keys.
            qk_dim: Number of dimensions of a head's queries and keys that are not rotated.
            v_dim: Size of a head's values.
            query_latent_dim: Size of a latent vector from which the queries are made. Default: they are made
                from the input itself.
            bias: Whether the projections to latent vectors, to the shared rotary key and to the output have
                a bias; those to the heads never do.
            norm_eps: Epsilon of the RMS norms of the latent vectors.
            dropout: Dropout probability of the attention weights, in training mode.
            causal: Whether a query sees only keys up to its own position.

        Raises:
            ShapeError: If a size is below 1.
            ArgumentError: If `dropout` is not at least 0 and below 1.
        """
        super().__init__()
        check_sizes(model_dim=model_dim, n_head=n_head, latent_dim=latent_dim, rotary_dim=rotary_dim)
        check_sizes(qk_dim=qk_dim, v_dim=v_dim, query_latent_dim=query_latent_dim or 1)
        check_dropout(dropout)
        self.n_head, self.latent_dim, self.rotary_dim = n_head, latent_dim, rotary_dim
        self.model_dim, self.qk_dim, self.v_dim, self.dropout = model_dim, qk_dim, v_dim, dropout
        self.rule = ScoreRule((qk_dim + rotary_dim) ** -0.5, Visibility(causal=causal))
        self.query_down = self.query_norm = None
        if query_latent_dim is not None:
            self.query_down = nn.Linear(model_dim, query_latent_dim, bias)
            self.query_norm = nn.RMSNorm(query_latent_dim, eps=norm_eps)
        self.query = nn.Linear(query_latent_dim or model_dim, n_head * (qk_dim + rotary_dim), bias=False)
        self.down = nn.Linear(model_dim, latent_dim, bias)
        self.down_norm = nn.RMSNorm(latent_dim, eps=norm_eps)
        self.key_rotary = nn.Linear(model_dim, rotary_dim, bias)
        self.key = nn.Linear(latent_dim, n_head * qk_dim, bias=False)
        self.value = nn.Linear(latent_dim, n_head * v_dim, bias=False)
        self.out = nn.Linear(n_head * v_dim, model_dim, bias)

    def forward(
        self,
        x: Vectors,
        *,
        visible: Visibility | None = None,
        bias: Bias | None = None,
        rotary: RotaryCosSin | None = None,
        cache: LayerCache | None = None,
        record: Record | None = None,
        name: str = "attention",
        absorbed: bool | None = None,
    ) -> Vectors:
        """Attend from `x` to itself and to what the cache holds.

        Args:
            x: Inputs, ``(batch, position, model_dim)``.
            visible: Which keys each query may look at, combined with the layer's own causality.
            bias: Added to the scores.
            rotary: Cosines and sines of the positions of `x`, for `rotary_dim` dimensions.
                Default: no rotation.
            cache: Latent vectors and rotated keys of earlier positions; the new ones are appended.
            record: Callback that is given what the attention used and computed, and may replace its output.
                In the absorbed form, queries and keys have `latent_dim + rotary_dim` dimensions, and values
                and outputs are latent vectors.
            name: Name of the layer in calls of `record`.
            absorbed: Whether to compute the absorbed form (see the module's description).
                Default: where a single query follows cached positions and nothing is recorded.

        Returns:
            ``(batch, position, model_dim)``.

        Raises:
            ShapeError: If an input has another shape, dtype or device than the layer expects.
        """
        check_input("x", x, self.model_dim, self.query.weight)
        short = (
            x if self.query_norm is None or self.query_down is None else self.query_norm(self.query_down(x))
        )
        q = split_heads(self.query(short), self.n_head)
        q, q_rotary = q.split([self.qk_dim, self.rotary_dim], -1)
        latent, k_rotary = self.down_norm(self.down(x))[:, None], self.key_rotary(x)[:, None]
        if rotary is not None:
            q_rotary, k_rotary = rotary(q_rotary), rotary(k_rotary)
        start = 0
        if cache is not None:
            k_rotary, latent, start = cache.append(k_rotary, latent)
        if absorbed is None:
            absorbed = record is None and x.shape[1] == 1 and start > 0
        to_key, to_value = (
            linear.weight.unflatten(0, (self.n_head, -1)) for linear in (self.key, self.value)
        )  # (head, dim, latent)
        if absorbed:
            q, k, v = q @ to_key, latent, latent
        else:
            k, v = latent @ to_key.mT, latent @ to_value.mT
        q = torch.cat([q, q_rotary], -1)
        k = torch.cat([k, k_rotary.expand(-1, k.shape[1], -1, -1)], -1)
        rule = replace(rule_at(self.rule, visible, start), bias=bias)
        attended = attend(q, k, v, rule, dropout=self.dropout if self.training else 0.0)
        heads = reported(record, name, q, k, v, attended.out, attended.lse, rule)
        out: Tensor = self.out(merge_heads(heads @ to_value.mT if absorbed else heads))
        return out

    def extra_repr(self) -> str:
        return f"n_head={self.n_head}, latent_dim={self.latent_dim}, rotary_dim={self.rotary_dim}"
