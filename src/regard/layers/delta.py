"""The gated delta rule as a layer (Gated DeltaNet, Yang et al. 2025): a state that corrects itself."""

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

from regard.attention.delta import State, attend_delta, delta_step, delta_weights
from regard.attention.shapes import Vectors, check_sizes
from regard.layers.attention import check_input, head_dims, merge_heads, split_heads

KEEP_BIAS = 4.0  # of an untrained layer: at first 2 % fade with each token
UNTRACED = "the delta rule keeps a state and forms no weights from scores, so a trace has nothing to hold"


class DeltaAttention(nn.Module):
    """Causal self-attention with a state of fixed size, updated by the gated delta rule.

    Each token corrects what the state predicts for its key. Queries and keys are normalised to length 1. How
    strongly a token writes, and how much of the state is kept before it does, are sigmoids of the token, for
    each head. Processing one token at a time, with the `state` returned before, gives the same outputs as the
    whole sequence at once.

    Example:
        >>> import torch
        >>> layer = DeltaAttention(model_dim=8, n_head=2)
        >>> out, state = layer(torch.randn(1, 5, 8))
        >>> out.shape, state.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 4, 4]))
    """

    def __init__(
        self,
        model_dim: int,
        n_head: int,
        *,
        qk_dim: int | None = None,
        v_dim: int | None = None,
        bias: bool = False,
    ) -> None:
        """Create the layer with freshly initialised projections.

        Args:
            model_dim: Size of the input and output vectors.
            n_head: Number of heads.
            qk_dim: Size of a head's queries and keys. Default: `model_dim / n_head`.
            v_dim: Size of a head's values. Default: `model_dim / n_head`.
            bias: Whether the query, key, value and output projections have a bias; the gates always do.

        Raises:
            ShapeError: If a size is below 1, or `model_dim` is not a multiple of `n_head` where a head's size
                is left to the default.
        """
        super().__init__()
        qk_dim, v_dim = head_dims(model_dim, n_head, qk_dim, v_dim)
        check_sizes(model_dim=model_dim, n_head=n_head, qk_dim=qk_dim, v_dim=v_dim)
        self.model_dim, self.n_head, self.qk_dim, self.v_dim = model_dim, n_head, qk_dim, v_dim
        self.query, self.key = (nn.Linear(model_dim, n_head * qk_dim, bias) for _ in range(2))
        self.value = nn.Linear(model_dim, n_head * v_dim, bias)
        self.write, self.keep = nn.Linear(model_dim, n_head), nn.Linear(model_dim, n_head)
        nn.init.constant_(self.keep.bias, KEEP_BIAS)
        self.out = nn.Linear(n_head * v_dim, model_dim, bias)

    def forward(
        self,
        x: Vectors,
        state: State | None = None,
        *,
        key_mask: Bool[Tensor, "batch position"] | None = None,
    ) -> tuple[Vectors, State]:
        """Compute the outputs, and the state after the last token.

        Args:
            x: ``(batch, position, model_dim)``.
            state: ``(batch, head, qk_dim, v_dim)``, after the tokens before these. Default: there are none.
            key_mask: ``(batch, position)``, False where a token is padding, which leaves the state as it is.

        Returns:
            ``(batch, position, model_dim)``, and the state.
        """
        q, k, v, log_decay, beta = self._parts(x)
        if key_mask is not None:
            log_decay, beta = (gate.masked_fill(~key_mask[:, None], 0.0) for gate in (log_decay, beta))
        if state is not None and x.shape[1] == 1:
            read, state = delta_step(q, k, v, log_decay, beta, state, scale=1.0)
        else:
            read, state = attend_delta(q, k, v, log_decay, beta, scale=1.0, state=state)
        out: Tensor = self.out(merge_heads(read))
        return out, state

    def weights(self, x: Vectors) -> Float[Tensor, "batch head position position"]:
        """Compute how much of each token's value every output holds; `forward` never forms these weights.

        Args:
            x: Inputs, ``(batch, position, model_dim)``.

        Returns:
            ``(batch, head, position, position)``, from an empty state; weights may be negative, and rows need
            not sum to 1.

        Raises:
            ShapeError: If `x` has another shape, dtype or device than the layer expects.
        """
        q, k, _, log_decay, beta = self._parts(x)
        return delta_weights(q, k, log_decay, beta, scale=1.0)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        check_input("x", x, self.model_dim, self.query.weight)
        q, k = (normalize(split_heads(linear(x), self.n_head), dim=-1) for linear in (self.query, self.key))
        v = split_heads(self.value(x), self.n_head)
        return q, k, v, logsigmoid(self.keep(x)).mT, self.write(x).sigmoid().mT

    def extra_repr(self) -> str:
        return f"n_head={self.n_head}, qk_dim={self.qk_dim}, v_dim={self.v_dim}"
