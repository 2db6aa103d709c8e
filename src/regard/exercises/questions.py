"""The written questions of `regard quiz`."""

from __future__ import annotations

from regard.exercises.quiz import Question

_MULTI = (
    "Multi-head attention of width d with h heads; b sequences, n queries, m keys. The heads of one "
    "sequence are folded into the batch. "
)
_SYMBOLS = ("b", "n", "m", "d", "h")
_QKV = {"q": (6, 3, 5), "k": (6, 7, 5), "v": (6, 7, 5)}
_DECODING = (
    "One step of decoding, with a cache of n positions, b sequences, width d = h k, h heads of size k. "
)
_COSTS = ("b", "n", "d", "h", "k")
# Written in h and k, so that it is known that h divides d.
_WIDTH = {"d": "h*k"}
_STEP = {
    "x": (2, 6),
    "W_q": (3, 6, 5),
    "W_k": (6, 5),
    "W_v": (6, 4),
    "W_o": (3, 4, 6),
    "K": (2, 7, 5),
    "V": (2, 7, 4),
}
_STEP |= {"q": (2, 3, 5), "weights": (2, 3, 7), "o": (2, 3, 4)}


def _step(*names: str) -> dict[str, tuple[int, ...]]:
    return {name: _STEP[name] for name in names}


QUESTIONS = (
    Question("projected", _MULTI + "The shape of W_q(queries)?", "shape", "(b, n, d)", _SYMBOLS),
    Question(
        "split",
        _MULTI + "The shape of the queries after the heads are split?",
        "shape",
        "(b*h, n, d/h)",
        _SYMBOLS,
    ),
    Question(
        "split-keys", _MULTI + "The shape of the keys after the split?", "shape", "(b*h, m, d/h)", _SYMBOLS
    ),
    Question("scores", _MULTI + "The shape of the scores?", "shape", "(b*h, n, m)", _SYMBOLS),
    Question("heads-out", _MULTI + "The shape of what the heads return?", "shape", "(b*h, n, d/h)", _SYMBOLS),
    Question(
        "output",
        _MULTI + "The shape after the heads are joined and W_o is applied?",
        "shape",
        "(b, n, d)",
        _SYMBOLS,
    ),
    Question(
        "wide-values",
        _MULTI
        + "W_v is twice as wide and the output still d. The shape of W_o.weight, as nn.Linear keeps it?",
        "shape",
        "(d, 2d)",
        _SYMBOLS,
    ),
    Question(
        "encoder-in",
        "A Transformer encoder of width d is given b sentences of n tokens. The shape of the input of its "
        "first layer?",
        "shape",
        "(b, n, d)",
        _SYMBOLS,
    ),
    Question("encoder-out", "And of the output of its last layer?", "shape", "(b, n, d)", _SYMBOLS),
    Question(
        "encoder-parts",
        "What are the parts of one encoder layer, and what stands around each of them?",
        "open",
        "Self-attention and a position-wise feed-forward network; around each a residual sum and a layer "
        "norm.",
        lab="families",
    ),
    Question(
        "mean",
        "The entries of q and k (d numbers each) are independent, with mean mu and variance sigma^2. The "
        "mean of q.k?",
        "formula",
        "d mu^2",
        ("d", "mu", "sigma"),
        lab="variance",
    ),
    Question(
        "variance",
        "And the variance of q.k?",
        "formula",
        "d (sigma^4 + 2 mu^2 sigma^2)",
        ("d", "mu", "sigma"),
        lab="variance",
    ),
    Question(
        "scale",
        "For mu = 0 and sigma = 1: by which number must q.k be divided so that its variance is 1?",
        "formula",
        "sqrt(d)",
        ("d",),
        lab="variance",
    ),
    Question(
        "doubled",
        "For mu = 0 and sigma = 1 the size of a head goes from d to 2d. By which factor does the variance "
        "of q.k grow?",
        "formula",
        "2",
        ("d",),
        lab="variance",
    ),
    Question(
        "twice-the-heads",
        "Multi-head attention of width d goes from h to 2h heads, the width stays. The size of one head now?",
        "formula",
        "d/(2h)",
        ("d", "h"),
        lab="heads",
    ),
    Question(
        "twice-the-heads-weights",
        "And by which factor does the number of weights in W_q, W_k, W_v and W_o grow?",
        "formula",
        "1",
        ("d", "h"),
        lab="heads",
    ),
    Question(
        "why-scale",
        "What goes wrong in training without the scale?",
        "open",
        "Scores grow with the size of a head, softmax becomes nearly one-hot, and its gradient vanishes.",
        lab="temperature",
    ),
    Question(
        "single-or-multi",
        "What can several heads do that one head of the same width cannot?",
        "open",
        "One head has one set of weights for each query, so it averages; several look at several places "
        "at once.",
        lab="heads",
    ),
    Question(
        "nonlinear",
        "Which operations of self-attention are nonlinear in its input?",
        "open",
        "Softmax, the product of queries with keys, and the product of weights with values: all three.",
        lab="nonlinear",
    ),
    Question(
        "causal",
        "A language model is trained without its causal mask. What happens to its training loss, and to "
        "its text?",
        "open",
        "Each position sees the token it must predict: the loss falls to almost nothing and the text is "
        "useless.",
        lab="causal",
    ),
    Question(
        "argmax",
        "Why can attention that takes the best key alone not be trained?",
        "open",
        "argmax is flat almost everywhere: queries and keys get no gradient, only the winning value does.",
        lab="argmax",
    ),
    Question(
        "blank-scores",
        "Fill the blank: q (batch*heads, queries, size), k (batch*heads, keys, size).",
        "blank",
        "k.transpose(1, 2)",
        code="torch.bmm(q, ____) / math.sqrt(q.shape[-1])",
        sizes={name: _QKV[name] for name in ("q", "k")},
    ),
    Question(
        "blank-scale",
        "Fill the blank: the scale.",
        "blank",
        "math.sqrt(q.shape[-1])",
        code="torch.bmm(q, k.transpose(1, 2)) / ____",
        sizes={name: _QKV[name] for name in ("q", "k")},
    ),
    Question(
        "blank-average",
        "Fill the blank: from scores to the heads' outputs.",
        "blank",
        "torch.softmax(scores, dim=-1)",
        code="torch.bmm(____, v)",
        sizes={"scores": (6, 3, 7), "v": (6, 7, 5)},
    ),
    Question(
        "blank-split",
        "Fill the blank: X (2, 7, 15) becomes (2 * 3, 7, 5), three heads, those of one sequence side by "
        "side.",
        "blank",
        "X.reshape(2, 7, 3, 5).permute(0, 2, 1, 3)",
        code="____.reshape(6, 7, 5)",
        sizes={"X": (2, 7, 15)},
    ),
    Question(
        "blank-join",
        "Fill the blank: X (2, 3, 7, 5), heads before positions, becomes (2, 7, 15).",
        "blank",
        "X.transpose(1, 2)",
        code="____.reshape(2, 7, 15)",
        sizes={"X": (2, 3, 7, 5)},
    ),
    Question(
        "blank-queries",
        "Multi-query step, x (b, d), W_q (h, d, k): fill the blank.",
        "blank",
        '"bd,hdk->bhk"',
        code="torch.einsum(____, x, W_q)",
        sizes=_step("x", "W_q"),
    ),
    Question(
        "blank-new-key",
        "Multi-query step, x (b, d), W_k (d, k), cache K (b, n, k): the new cache.",
        "blank",
        "(x @ W_k)[:, None]",
        code="torch.cat([K, ____], dim=1)",
        sizes=_step("x", "W_k", "K"),
    ),
    Question(
        "blank-logits",
        "Multi-query step, q (b, h, k), K (b, n, k): the logits (b, h, n).",
        "blank",
        '"bhk,bnk->bhn"',
        code="torch.einsum(____, q, K)",
        sizes=_step("q", "K"),
    ),
    Question(
        "blank-values",
        "Multi-query step, weights (b, h, n), V (b, n, v): what each head reads.",
        "blank",
        '"bhn,bnv->bhv"',
        code="torch.einsum(____, weights, V)",
        sizes=_step("weights", "V"),
    ),
    Question(
        "blank-output",
        "Multi-query step, o (b, h, v), W_o (h, v, d): the output (b, d).",
        "blank",
        '"bhv,hvd->bd"',
        code="torch.einsum(____, o, W_o)",
        sizes=_step("o", "W_o"),
    ),
    Question(
        "decoding-compute",
        _DECODING + "Multi-head attention's operations, in big-O?",
        "order",
        "b d^2 + b n d",
        _COSTS,
        _WIDTH,
        lab="decoding",
    ),
    Question(
        "decoding-memory",
        _DECODING + "The bytes that multi-head attention moves, in big-O: weights, input and cache?",
        "order",
        "d^2 + b d + b n d",
        _COSTS,
        _WIDTH,
        lab="decoding",
    ),
    Question(
        "multi-query-compute",
        _DECODING + "Multi-query attention's operations, in big-O?",
        "order",
        "b d^2 + b n d",
        _COSTS,
        _WIDTH,
        lab="decoding",
    ),
    Question(
        "multi-query-memory",
        _DECODING
        + "The bytes that multi-query attention moves, in big-O, weights, input and cache without logits?",
        "order",
        "d^2 + b d + b n d / h",
        _COSTS,
        _WIDTH,
        lab="decoding",
    ),
    Question(
        "softmax-compute",
        "Softmax attention over n positions of size d, not causal: operations in big-O?",
        "order",
        "n^2 d",
        ("n", "d"),
        lab="linear",
    ),
    Question(
        "softmax-memory",
        "And its memory, when the weights are kept?",
        "order",
        "n^2 + n d",
        ("n", "d"),
        lab="linear",
    ),
    Question(
        "kernel-compute",
        "Kernel attention over n positions with p features of each key and values of size m: operations "
        "in big-O?",
        "order",
        "n p m",
        ("n", "p", "m"),
        lab="linear",
    ),
    Question(
        "kernel-memory",
        "And its memory: features, values and the sum that replaces the weights?",
        "order",
        "n p + n m + p m",
        ("n", "p", "m"),
        lab="linear",
    ),
    Question(
        "quadratic-features",
        "phi(q).phi(k) = (q.k + 1)^2 for vectors of size d. The smallest number of features, with "
        "repeated products "
        "taken together?",
        "formula",
        "(d+1)(d+2)/2",
        ("d",),
        lab="linear",
    ),
)
