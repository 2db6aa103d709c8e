"""Idioms of scaled dot products: where the heads are, how products are written, what is done to scores."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from tracing.idioms.harness import BATCH, DIM, HEAD, Idiom, N


class Plain(Idiom):
    """q @ k.mT, softmax, @ v."""

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.weights(self.scores(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1))
        return self.merge(self.gate(self.met(a) @ v))


class Annotated(Idiom):
    """masked_fill of -1e9 and dropout, as the annotated Transformer has it."""

    def more(self):
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.heads(x)
        s = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        s = s.masked_fill(torch.ones(N, N).tril() == 0, -1e9)
        p = self.dropout(self.weights(F.softmax(self.scores(s), dim=-1)))
        return self.merge(self.gate(torch.matmul(self.met(p), v)))


class MinGPT(Idiom):
    """A buffer of ones, -inf, dropout."""

    def more(self):
        self.register_buffer("bias", torch.tril(torch.ones(N, N)).view(1, 1, N, N))

    def forward(self, x):
        q, k, v = self.heads(x)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :N, :N] == 0, float("-inf"))
        att = self.weights(F.softmax(self.scores(att), dim=-1))
        y = self.gate(self.met(att) @ v)
        return self.out(y.transpose(1, 2).contiguous().view(BATCH, N, DIM))


class Timm(Idiom):
    """One projection, (3, batch, head, position, dim), the query scaled."""

    def forward(self, x):
        qkv = self.qkv(x).reshape(BATCH, N, 3, HEAD, DIM // HEAD).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q = q * (DIM // HEAD) ** -0.5
        attn = q @ k.transpose(-2, -1)
        attn = self.weights(self.scores(attn).softmax(dim=-1))
        return self.out(self.gate(self.met(attn) @ v).transpose(1, 2).reshape(BATCH, N, DIM))


class Einsum(Idiom):
    """Heads in the third place, products by einsum."""

    def forward(self, x):
        q, k, v = (t.transpose(1, 2) for t in self.heads(x))
        s = torch.einsum("bqhd,bkhd->bhqk", q, k)
        a = self.weights(torch.softmax(self.scores(s) / 2, dim=3))
        o = torch.einsum("bhqk,bkhd->bqhd", self.met(a), v)
        return self.out(self.gate(o.transpose(1, 2)).transpose(1, 2).flatten(-2))


class EinsumHeadsLast(Idiom):
    """Scores (batch, query, key, head): a softmax over the third of four dimensions."""

    def forward(self, x):
        q, k, v = (t.transpose(1, 2) for t in self.heads(x))
        s = torch.einsum("bqhd,bkhd->bqkh", q, k)
        s = self.scores(s.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        a = s.softmax(2)
        a = self.met(self.weights(a.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
        o = torch.einsum("bqkh,bkhd->bqhd", a, v)
        return self.out(self.gate(o.transpose(1, 2)).transpose(1, 2).flatten(-2))


class EinsumEllipsis(Idiom):
    """An ellipsis for batch and heads."""

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.weights(torch.einsum("...id,...jd->...ij", q, k).mul(0.5).softmax(-1))
        if self.cut is not None:
            a = self.scores(torch.einsum("...id,...jd->...ij", q, k).mul(0.5)).softmax(-1)
        return self.merge(self.gate(torch.einsum("...ij,...jd->...id", self.met(a), v)))


class Folded(Idiom):
    """(batch * head) in one dimension, bmm."""

    def fold(self, t):
        return t.reshape(BATCH * HEAD, N, -1)

    def unfold(self, t):
        return t.view(BATCH, HEAD, *t.shape[1:])

    def forward(self, x):
        q, k, v = (self.fold(t) for t in self.heads(x))
        s = torch.bmm(q, k.transpose(1, 2)) * 0.5
        s = self.fold(self.scores(self.unfold(s)))
        a = torch.softmax(s, -1)
        a = self.fold(self.met(self.weights(self.unfold(a))))
        o = torch.bmm(a, v)
        return self.merge(self.gate(self.unfold(o)))


class HeadsFirst(Folded):
    """(head * batch): torch.cat(t.split(...), 0), as Kyubyong's and others' code folds."""

    def fold(self, t):
        return t.transpose(0, 1).reshape(HEAD * BATCH, N, -1)

    def unfold(self, t):
        return t.view(HEAD, BATCH, *t.shape[1:]).transpose(0, 1)

    def forward(self, x):
        q, k, v = (torch.cat(t.split(DIM // HEAD, -1), 0) for t in self.qkv(x).chunk(3, -1))
        s = torch.bmm(q, k.transpose(1, 2)) * 0.5
        a = torch.softmax(self.fold(self.scores(self.unfold(s))), -1)
        a = self.fold(self.met(self.weights(self.unfold(a))))
        return self.merge(self.gate(self.unfold(torch.bmm(a, v))))


class HeadBatchFour(Idiom):
    """(head, batch, query, key): lists of heads stacked in front."""

    def forward(self, x):
        q, k, v = (t.transpose(0, 1) for t in self.heads(x))
        s = self.scores((q @ k.mT).transpose(0, 1)).transpose(0, 1)
        a = self.met(self.weights(s.softmax(-1).transpose(0, 1))).transpose(0, 1)
        return self.merge(self.gate((a @ v).transpose(0, 1)))


class Fairseq(Idiom):
    """(time, batch, channel), bmm over batch * heads."""

    def more(self):
        self.num_heads = HEAD

    def given(self):
        return (torch.randn(N, BATCH, DIM),)

    def forward(self, x):
        q, k, v = (
            t.contiguous().view(N, BATCH * HEAD, DIM // HEAD).transpose(0, 1)
            for t in self.qkv(x).chunk(3, -1)
        )
        w = torch.bmm(q, k.transpose(1, 2))
        w = self.scores(w.view(BATCH, HEAD, N, N)).view(BATCH * HEAD, N, N)
        w = F.softmax(w, dim=-1)
        w = self.met(self.weights(w.view(BATCH, HEAD, N, N))).view(BATCH * HEAD, N, N)
        o = torch.bmm(w, v)
        o = self.gate(o.view(BATCH, HEAD, N, -1)).reshape(BATCH * HEAD, N, -1)
        return self.out(o.transpose(0, 1).contiguous().view(N, BATCH, DIM))


class FairseqSquare(Fairseq):
    """As many heads as sequences as time steps: nothing but an experiment tells them apart."""

    n_head = 2

    def more(self):
        self.num_heads = 2

    def given(self):
        return (torch.randn(2, 2, DIM),)

    def forward(self, x):
        q, k, v = (t.contiguous().view(2, 4, 6).transpose(0, 1) for t in self.qkv(x).chunk(3, -1))
        w = torch.bmm(q, k.transpose(1, 2))
        w = self.scores(w.view(2, 2, 2, 2)).view(4, 2, 2)
        w = F.softmax(w, dim=-1)
        w = self.met(self.weights(w.view(2, 2, 2, 2))).view(4, 2, 2)
        o = self.gate(torch.bmm(w, v).view(2, 2, 2, -1)).reshape(4, 2, -1)
        return self.out(o.transpose(0, 1).contiguous().view(2, 2, DIM))


class OneHead(Idiom):
    """Three dimensions, one head."""

    n_head = 1

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        s = self.scores((q @ k.transpose(1, 2))[:, None] * 0.2)[:, 0]
        a = self.met(self.weights(s.softmax(-1)[:, None]))[:, 0]
        return self.out(self.gate((a @ v)[:, None])[:, 0])


class TwoDimensions(Idiom):
    """torch.mm twice: the textbook's form, without a batch."""

    n_head = 1

    def given(self):
        return (torch.randn(N, DIM),)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        s = self.scores(torch.mm(q, k.T)[None, None])[0, 0]
        a = self.met(self.weights(s.softmax(-1)[None, None]))[0, 0]
        return self.gate(torch.mm(a, v)[None, None])[0, 0]


class ListOfHeads(Idiom):
    """A loop over heads, each of its own softmax: three layers of one head."""

    def forward(self, x):
        outs = []
        for at, (q, k, v) in enumerate(zip(*(t.unbind(1) for t in self.heads(x)), strict=True)):
            s = self.scores((q @ k.mT)[:, None], at)
            a = self.met(self.weights(s.softmax(-1), at), at)
            outs.append(self.gate(a @ v[:, None], at)[:, 0])
        return self.out(torch.cat(outs, -1))


class KeysFirst(Idiom):
    """Scores (batch, head, key, query), a softmax over the third dimension, v.mT @ weights."""

    def forward(self, x):
        q, k, v = self.heads(x)
        s = self.scores(q @ k.mT).mT
        a = self.met(self.weights(s.softmax(-2).mT)).mT
        return self.merge(self.gate((v.mT @ a).mT))


class Grouped(Idiom):
    """Two query heads share keys: repeat_interleave, as Llama's."""

    n_head = 4

    def more(self):
        self.kv = nn.Linear(DIM, 12)

    def forward(self, x):
        q = self.heads(x)[0]
        k, v = (
            t.unflatten(-1, (2, 3)).transpose(1, 2).repeat_interleave(2, 1) for t in self.kv(x).chunk(2, -1)
        )
        a = self.weights(self.scores(q @ k.mT).softmax(-1))
        return self.merge(self.gate(self.met(a) @ v))


class GroupedFive(Idiom):
    """(batch, kv_head, group, query, key): five dimensions."""

    n_head = 4

    def more(self):
        self.kv = nn.Linear(DIM, 12)

    def forward(self, x):
        q = self.heads(x)[0].unflatten(1, (2, 2))
        k, v = (t.unflatten(-1, (2, 3)).transpose(1, 2)[:, :, None] for t in self.kv(x).chunk(2, -1))
        s = self.scores((q @ k.mT).flatten(1, 2)).unflatten(1, (2, 2))
        a = self.met(self.weights(s.softmax(-1).flatten(1, 2))).unflatten(1, (2, 2))
        return self.merge(self.gate((a @ v).flatten(1, 2)))


class Cosine(Idiom):
    """Normalised queries and keys, a learned temperature: Swin v2's."""

    def more(self):
        self.scale = nn.Parameter(torch.full((HEAD, 1, 1), 2.0))

    def forward(self, x):
        q, k, v = self.heads(x)
        s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.scale.exp()
        return self.merge(self.gate(self.met(self.weights(self.scores(s).softmax(-1))) @ v))


class T5Bias(Idiom):
    """A learned bias for each distance."""

    def more(self):
        self.far = nn.Embedding(2 * N, HEAD)

    def forward(self, x):
        q, k, v = self.heads(x)
        at = torch.arange(N)
        bias = self.far(at - at[:, None] + N).permute(2, 0, 1)[None]
        a = self.weights(F.softmax(self.scores(q @ k.transpose(3, 2) + bias).float(), dim=-1).type_as(q))
        return self.merge(self.gate(self.met(a) @ v))


class Alibi(Idiom):
    """A slope of distance, causal."""

    def forward(self, x):
        q, k, v = self.heads(x)
        at = torch.arange(N)
        bias = (at - at[:, None])[None] * torch.tensor([0.5, 0.25, 0.125])[:, None, None]
        s = (q @ k.mT + bias).masked_fill(at > at[:, None], -math.inf)
        return self.merge(self.gate(self.met(self.weights(self.scores(s).softmax(-1))) @ v))


class ShawKeys(Idiom):
    """Relative positions in keys and in values: the weights meet two kinds of values."""

    def more(self):
        self.rk, self.rv = (nn.Parameter(torch.randn(2 * N, DIM // HEAD)) for _ in range(2))

    def forward(self, x):
        q, k, v = self.heads(x)
        at = torch.arange(N)
        rk, rv = (r[at - at[:, None] + N] for r in (self.rk, self.rv))
        s = q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, rk)
        a = self.met(self.weights(self.scores(s).softmax(-1)))
        return self.merge(self.gate(a @ v + torch.einsum("bhqk,qkd->bhqd", a, rv)))


class TransformerXL(Idiom):
    """Two products and a shift: content and position."""

    def more(self):
        self.u, self.w = (nn.Parameter(torch.randn(HEAD, 1, DIM // HEAD)) for _ in range(2))
        self.r = nn.Parameter(torch.randn(HEAD, N, DIM // HEAD))

    def forward(self, x):
        q, k, v = self.heads(x)
        s = torch.einsum("bhid,bhjd->bhij", q + self.u, k) + (q + self.w) @ self.r.mT
        return self.merge(self.gate(self.met(self.weights(self.scores(s * 0.4).softmax(-1))) @ v))


class Softcap(Idiom):
    """tanh of scores: Gemma 2's."""

    def forward(self, x):
        q, k, v = self.heads(x)
        s = torch.tanh(q @ k.mT / 3.0) * 3.0
        return self.merge(self.gate(self.met(self.weights(self.scores(s).softmax(-1))) @ v))


class Sink(Idiom):
    """One more score, dropped after the softmax: gpt-oss."""

    def more(self):
        self.sink = nn.Parameter(torch.randn(HEAD))

    def forward(self, x):
        q, k, v = self.heads(x)
        s = self.scores(q @ k.mT)
        s = torch.cat([s, self.sink.view(1, HEAD, 1, 1).expand(BATCH, HEAD, N, 1)], -1)
        a = F.softmax(s - s.max(-1, keepdim=True).values, -1)[..., :-1]
        return self.merge(self.gate(self.met(self.weights(a)) @ v))


class RegisterTokens(Idiom):
    """Learned keys and values beside those of the sequence: n + 2 keys."""

    def more(self):
        self.mk, self.mv = (nn.Parameter(torch.randn(1, HEAD, 2, DIM // HEAD)) for _ in range(2))

    def forward(self, x):
        q, k, v = self.heads(x)
        k, v = (torch.cat([m.expand(BATCH, -1, -1, -1), t], 2) for m, t in ((self.mk, k), (self.mv, v)))
        return self.merge(self.gate(self.met(self.weights(self.scores(q @ k.mT).softmax(-1))) @ v))


class Cross(Idiom):
    """Queries of one sequence, keys of another."""

    def given(self):
        return torch.randn(BATCH, N, DIM), torch.randn(BATCH, 7, DIM)

    def forward(self, x, memory):
        q, (_, k, v) = self.heads(x)[0], self.heads(memory)
        return self.merge(self.gate(self.met(self.weights(self.scores(q @ k.mT).softmax(-1))) @ v))


class TwoLayers(Idiom):
    """Two layers in one module, one after the other."""

    def forward(self, x):
        for layer in range(2):
            q, k, v = self.heads(x)
            a = self.weights(self.scores(q @ k.mT, layer).softmax(-1), layer)
            x = x + self.merge(self.gate(self.met(a, layer) @ v, layer))
        return x


class SharedWeights(Idiom):
    """The weights are also averaged over positions, first: another use of them."""

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.met(self.weights(self.scores(q @ k.mT).softmax(-1)))
        at = self.gate(a @ torch.arange(float(N))[:, None])
        return self.merge(self.gate(a @ v) + at)


class MaskedTwice(Idiom):
    """Weights times a mask and divided by what is left: AllenNLP's masked softmax."""

    def forward(self, x):
        q, k, v = self.heads(x)
        mask = torch.ones(N)
        mask[1] = 0
        a = F.softmax(self.scores(q @ k.mT) * mask, -1) * mask
        a = a / (a.sum(-1, keepdim=True) + 1e-13)
        return self.merge(self.gate(self.met(self.weights(a)) @ v))


class Linear2(Idiom):
    """F.linear in the place of a product."""

    def forward(self, x):
        q, k, v = self.heads(x)
        products = [F.linear(q[b, h], k[b, h]) for b in range(BATCH) for h in range(HEAD)]
        s = torch.stack(products).view(BATCH, HEAD, N, N)
        a = self.met(self.weights(self.scores(s).softmax(-1)))
        return self.merge(self.gate(a @ v))


class InPlace(Idiom):
    """Scores and weights changed in place."""

    def forward(self, x):
        q, k, v = self.heads(x)
        s = (q @ k.mT).mul_(0.5)
        s.masked_fill_(torch.ones(N, N).triu(1).bool(), -math.inf)
        a = self.weights(self.scores(s).softmax(-1))
        a = self.met(a)
        return self.merge(self.gate(a @ v))


class MultiplySum(Idiom):
    """Products written as a multiplication and a sum."""

    def forward(self, x):
        q, k, v = self.heads(x)
        s = (q[:, :, :, None] * k[:, :, None]).sum(-1)
        a = self.met(self.weights(self.scores(s).softmax(-1)))
        return self.merge(self.gate((a[..., None] * v[:, :, None]).sum(3)))


class MultiQuery(Idiom):
    """One head of keys and values for all queries, by einsum."""

    def more(self):
        self.kv = nn.Linear(DIM, 2 * DIM // HEAD)

    def forward(self, x):
        q = self.heads(x)[0]
        k, v = self.kv(x).chunk(2, -1)
        s = torch.einsum("bhid,bjd->bhij", q, k)
        a = self.met(self.weights(self.scores(s).softmax(-1)))
        return self.merge(self.gate(torch.einsum("bhij,bjd->bhid", a, v)))


class QKNorm(Idiom):
    """Norms of queries and keys, and rotary positions."""

    def more(self):
        self.nq, self.nk = nn.LayerNorm(DIM // HEAD), nn.LayerNorm(DIM // HEAD)

    def forward(self, x):
        q, k, v = self.heads(x)
        angle = torch.arange(N)[:, None] * torch.tensor([1.0, 0.1])
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)

        def turn(t):
            return t * cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * sin

        s = turn(self.nq(q)) @ turn(self.nk(k)).mT
        return self.merge(self.gate(self.met(self.weights(self.scores(s).softmax(-1))) @ v))


class Function(Idiom):
    """A function outside of any module: attention(q, k, v)."""

    def forward(self, x):
        def attention(q, k, v):
            p = torch.softmax(self.scores(q @ k.transpose(-1, -2)), -1)
            p = self.met(self.weights(p))
            return p @ v, p

        out, _ = attention(*self.heads(x))
        return self.merge(self.gate(out))


class Half(Idiom):
    """Softmax in float32 of a model in float64."""

    def forward(self, x):
        q, k, v = self.heads(x)
        s = self.scores(q @ k.mT)
        a = F.softmax(s, dim=-1, dtype=torch.float64).to(q.dtype)
        return self.merge(self.gate(self.met(self.weights(a)) @ v))


class SoftmaxModule(Idiom):
    """nn.Softmax(dim=-1)."""

    def more(self):
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.heads(x)
        return self.merge(self.gate(self.met(self.weights(self.softmax(self.scores(q @ k.mT)))) @ v))


class Baddbmm(Folded):
    """torch.baddbmm with alpha: Bloom's."""

    def forward(self, x):
        q, k, v = (self.fold(t) for t in self.heads(x))
        s = torch.baddbmm(torch.zeros(BATCH * HEAD, N, N), q, k.mT, beta=1.0, alpha=0.5)
        a = torch.softmax(self.fold(self.scores(self.unfold(s))), -1)
        a = self.fold(self.met(self.weights(self.unfold(a))))
        return self.merge(self.gate(self.unfold(torch.bmm(a, v))))


class Unbatched(Idiom):
    """(position, channel): heads and no batch."""

    def given(self):
        return (torch.randn(N, DIM),)

    def forward(self, x):
        q, k, v = (t.view(N, HEAD, -1).transpose(0, 1) for t in self.qkv(x).chunk(3, -1))
        s = self.scores((q @ k.mT)[None])[0]
        a = self.met(self.weights(s.softmax(-1)[None]))[0]
        return self.gate((a @ v)[None])[0].transpose(0, 1).flatten(1)


class Chunked(Idiom):
    """Queries in two chunks: two layers, of rows 0 to 2 and 3 to 4."""

    def forward(self, x):
        q, k, v = self.heads(x)
        outs = []
        for at, part in enumerate((slice(0, 3), slice(3, 5))):
            a = self.weights(self.scores(q[:, :, part] @ k.mT, at).softmax(-1), at)
            outs.append(self.gate(self.met(a, at) @ v, at))
        return self.merge(torch.cat(outs, 2))


class OutArgument(Idiom):
    """torch.softmax(..., out=...)."""

    def forward(self, x):
        q, k, v = self.heads(x)
        s = self.scores(q @ k.mT)
        a = torch.empty_like(s)
        torch.softmax(s, -1, out=a)
        return self.merge(self.gate(self.met(self.weights(a)) @ v))


class LogExp(Idiom):
    """log_softmax, then exp."""

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.weights(F.log_softmax(self.scores(q @ k.mT), -1).exp())
        return self.merge(self.gate(self.met(a) @ v))


class Returned(Idiom):
    """The mean over heads of the weights is kept, too, and used for nothing."""

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.met(self.weights(self.scores(q @ k.mT).softmax(-1)))
        self.map = a.mean(1)
        return self.merge(self.gate(a @ v))


class MaskInside(Idiom):
    """A padding mask of its own, added as (1 - mask) * -10000: BERT's."""

    def forward(self, x):
        q, k, v = self.heads(x)
        mask = torch.ones(BATCH, 1, 1, N)
        mask[1, ..., -1] = 0
        s = q @ k.transpose(-1, -2) / 2 + (1.0 - mask) * -10000.0
        return self.merge(self.gate(self.met(self.weights(nn.Softmax(dim=-1)(self.scores(s)))) @ v))
