"""Idioms that are not only a softmax of dot products: additive, pooled, mixed, windowed."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from tracing.idioms.harness import BATCH, DIM, HEAD, Idiom, N


class Bahdanau(Idiom):
    """w . tanh(q + k)."""

    n_head = 1

    def more(self):
        self.wq, self.wk, self.v = nn.Linear(DIM, 8), nn.Linear(DIM, 8), nn.Linear(8, 1)

    def forward(self, x):
        s = self.v(torch.tanh(self.wq(x)[:, :, None] + self.wk(x)[:, None])).squeeze(-1)
        a = self.met(self.weights(self.scores(s[:, None]).softmax(-1)))[:, 0]
        return self.gate(torch.bmm(a, x)[:, None])[:, 0]


class Pooling(Idiom):
    """(w * x).sum: one query."""

    n_head = 1

    def more(self):
        self.score = nn.Sequential(nn.Linear(DIM, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        s = self.scores(self.score(x).transpose(1, 2)[:, None])[:, 0].transpose(1, 2)
        w = s.softmax(dim=1)
        w = self.met(self.weights(w.transpose(1, 2)[:, None]))[:, 0].transpose(1, 2)
        return self.gate((w * x).sum(1)[:, None, None])[:, 0, 0]


class PoolingSqueezed(Idiom):
    """A softmax over (batch, time), unsqueezed before the sum."""

    n_head = 1

    def more(self):
        self.score = nn.Linear(DIM, 1)

    def forward(self, x):
        s = self.scores(self.score(x).squeeze(-1)[:, None, None])[:, 0, 0]
        w = self.met(self.weights(torch.softmax(s, -1)[:, None, None]))[:, 0, 0]
        return self.gate(torch.sum(x * w.unsqueeze(-1), dim=1)[:, None, None])[:, 0, 0]


class PoolingBmm(Idiom):
    """w.unsqueeze(1) @ x."""

    n_head = 1

    def more(self):
        self.score = nn.Linear(DIM, 1)

    def forward(self, x):
        s = self.scores(self.score(x).squeeze(-1)[:, None, None])[:, 0, 0]
        w = self.met(self.weights(F.softmax(s, dim=-1)[:, None, None]))[:, 0]
        return self.gate(torch.bmm(w, x)[:, None])[:, 0].squeeze(1)


class PoolingEinsum(Idiom):
    """einsum("bt,btd->bd")."""

    n_head = 1

    def more(self):
        self.score = nn.Linear(DIM, 1)

    def forward(self, x):
        s = self.scores(self.score(x).squeeze(-1)[:, None, None])[:, 0, 0]
        w = self.met(self.weights(s.softmax(-1)[:, None, None]))[:, 0, 0]
        return self.gate(torch.einsum("bt,btd->bd", w, x)[:, None, None])[:, 0, 0]


class PoolingHeads(Idiom):
    """Several pooled answers: self-attentive sentence embeddings, A = softmax(W2 tanh(W1 x)), A.mT @ x."""

    def more(self):
        self.w1, self.w2 = nn.Linear(DIM, 8), nn.Linear(8, HEAD)

    def forward(self, x):
        s = self.w2(torch.tanh(self.w1(x)))
        s = self.scores(s.mT[:, None])[:, 0].mT
        a = self.met(self.weights(s.softmax(dim=1).mT[:, None]))[:, 0]
        return self.gate((a @ x)[:, None])[:, 0]


class Pointer(Idiom):
    """The weights are the answer."""

    n_head = 1

    def given(self):
        return torch.randn(BATCH, N, DIM), torch.randn(BATCH, 7, DIM)

    def forward(self, x, memory):
        s = self.scores((x @ memory.mT)[:, None])[:, 0]
        return self.met(self.weights(s.softmax(-1)[:, None]))[:, 0]


class TalkingEinsum(Idiom):
    """Heads mixed before and after the softmax, by einsum."""

    def more(self):
        self.pre, self.post = (nn.Parameter(torch.randn(HEAD, HEAD)) for _ in range(2))

    def forward(self, x):
        q, k, v = self.heads(x)
        s = torch.einsum("bhij,hg->bgij", q @ k.mT, self.pre)
        a = self.weights(self.scores(s).softmax(-1))
        a = self.met(torch.einsum("bhij,hg->bgij", a, self.post))
        return self.merge(self.gate(a @ v))


class TalkingMatmul(Idiom):
    """Heads mixed by a product, in the last place."""

    def more(self):
        self.post = nn.Parameter(torch.randn(HEAD, HEAD))

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.weights(self.scores(q @ k.mT).softmax(-1))
        a = self.met((a.permute(0, 2, 3, 1) @ self.post).permute(0, 3, 1, 2))
        return self.merge(self.gate(a @ v))


class TalkingSquare(TalkingEinsum):
    """As many heads as keys."""

    n_head = 4

    def given(self):
        return (torch.randn(BATCH, 4, DIM),)

    def more(self):
        self.pre, self.post = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))


class DeepViT(Idiom):
    """Re-attention: heads mixed by a parameter, then a norm."""

    def more(self):
        self.theta, self.norm = nn.Parameter(torch.randn(HEAD, HEAD)), nn.LayerNorm(HEAD)

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.weights(self.scores(q @ k.mT).softmax(-1))
        a = torch.einsum("b h i j, h g -> b g i j", a, self.theta)
        a = self.met(self.norm(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return self.merge(self.gate(torch.einsum("b h i j, b h j d -> b h i d", a, v)))


class TalkingLinear(Idiom):
    """nn.Linear over heads."""

    def more(self):
        self.mix = nn.Linear(HEAD, HEAD)

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.weights(self.scores(q @ k.mT).softmax(-1))
        a = self.met(self.mix(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return self.merge(self.gate(a @ v))


class TalkingConv(Idiom):
    """A 1 x 1 convolution over heads."""

    def more(self):
        self.mix = nn.Conv2d(HEAD, HEAD, 1)

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.met(self.mix(self.weights(self.scores(q @ k.mT).softmax(-1))))
        return self.merge(self.gate(a @ v))


class HeadGates(Idiom):
    """A learned gate for each head, on its weights."""

    def more(self):
        self.g = nn.Parameter(torch.rand(HEAD, 1, 1))

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.met(self.weights(self.scores(q @ k.mT).softmax(-1)) * self.g)
        return self.merge(self.gate(a @ v))


class Differential(Idiom):
    """The difference of two softmaxes is one layer."""

    def more(self):
        self.more_qk = nn.Linear(DIM, 2 * DIM)

    def forward(self, x):
        q, k, v = self.heads(x)
        q2, k2 = (t.unflatten(-1, (HEAD, -1)).transpose(1, 2) for t in self.more_qk(x).chunk(2, -1))
        a, b = (self.weights(self.scores(s).softmax(-1)) for s in (q @ k.mT, q2 @ k2.mT))
        return self.merge(self.gate(self.met(a - 0.4 * b) @ v))


class DifferentialView(Idiom):
    """Two maps of one softmax, (batch, head, 2, query, key), one taken from the other."""

    def more(self):
        self.both = nn.Linear(DIM, 4 * DIM)

    def forward(self, x):
        v = self.heads(x)[2]
        q, k = (t.unflatten(-1, (HEAD, 2, -1)).permute(0, 2, 3, 1, 4) for t in self.both(x).chunk(2, -1))
        s = q @ k.mT
        s = torch.stack([self.scores(s[:, :, 0]), self.scores(s[:, :, 1])], 2)
        a = s.flatten(1, 2).softmax(-1).view(BATCH, HEAD, 2, N, N)
        a = self.weights(a[:, :, 0]) - 0.3 * self.weights(a[:, :, 1])
        return self.merge(self.gate(self.met(a) @ v))


class ByExp(Idiom):
    """exp and a sum."""

    def forward(self, x):
        q, k, v = self.heads(x)
        e = torch.exp(self.scores(q @ k.mT))
        a = self.met(self.weights(e / e.sum(-1, keepdim=True)))
        return self.merge(self.gate(a @ v))


class ByExpStable(Idiom):
    """exp of scores less the largest."""

    def forward(self, x):
        q, k, v = self.heads(x)
        s = self.scores(q @ k.mT)
        e = (s - s.amax(-1, keepdim=True)).exp()
        a = self.met(self.weights(e.div(e.sum(-1, keepdim=True))))
        return self.merge(self.gate(a @ v))


class Softmax1(Idiom):
    """exp over one more than the sum."""

    def forward(self, x):
        q, k, v = self.heads(x)
        e = torch.exp(self.scores(q @ k.mT * 0.3))
        a = self.met(self.weights(e / (1 + e.sum(-1, keepdim=True))))
        return self.merge(self.gate(a @ v))


class NormalisedAfter(Idiom):
    """exp meets the values, then the sum divides."""

    switches = False

    def forward(self, x):
        q, k, v = self.heads(x)
        e = torch.exp(self.scores(q @ k.mT))
        self.note(lambda: e / e.sum(-1, keepdim=True))
        return self.merge(self.gate((e @ v) / e.sum(-1, keepdim=True)))


class Online(Idiom):
    """An online softmax over two blocks of keys."""

    def forward(self, x):
        q, k, v = self.heads(x)
        self.note(lambda: (q @ k.mT).softmax(-1))
        s = torch.zeros(BATCH, HEAD, N, N)
        top, total, out = torch.full_like(s[..., :1], -math.inf), 0.0, 0.0
        for part in (slice(0, 3), slice(3, 5)):
            block = q @ k[:, :, part].mT
            new = torch.maximum(top, block.amax(-1, keepdim=True))
            p, shrink = (block - new).exp(), (top - new).exp()
            total, out, top = total * shrink + p.sum(-1, keepdim=True), out * shrink + p @ v[:, :, part], new
        return self.merge(out / total)


class Sigmoid(Idiom):
    """Sigmoid attention."""

    def forward(self, x):
        q, k, v = self.heads(x)
        return self.merge(self.met(torch.sigmoid(q @ k.mT - math.log(N))) @ v)


class ReluSquared(Idiom):
    """relu squared, divided by the length."""

    def forward(self, x):
        q, k, v = self.heads(x)
        return self.merge(self.met(F.relu(q @ k.mT) ** 2 / N) @ v)


class LinearAttention(Idiom):
    """elu + 1, keys meet values first."""

    def forward(self, x):
        q, k, v = self.heads(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        self.note(lambda: (q @ k.mT) / (q @ k.mT).sum(-1, keepdim=True))
        state = k.mT @ v
        return self.merge((q @ state) / (q @ k.sum(2)[..., None]))


class Performer(Idiom):
    """Random features, by einsum."""

    def more(self):
        self.register_buffer("w", torch.randn(8, DIM // HEAD))

    def forward(self, x):
        q, k, v = self.heads(x)
        q, k = (torch.exp(t @ self.w.T - (t * t).sum(-1, keepdim=True) / 2) for t in (q, k))
        state = torch.einsum("bhnm,bhnd->bhmd", k, v)
        norm = torch.einsum("bhnm,bhm->bhn", q, k.sum(2))
        self.note(lambda: (q @ k.mT) / (q @ k.mT).sum(-1, keepdim=True))
        return self.merge(torch.einsum("bhnm,bhmd->bhnd", q, state) / norm[..., None])


class Beside(Idiom):
    """Sigmoid attention beside softmax attention: what is not traced is said."""

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.met(self.weights(self.scores(q @ k.mT).softmax(-1)))
        self.met(torch.sigmoid(q @ k.mT), 1)
        return self.merge(self.gate(a @ v) + torch.sigmoid(q @ k.mT) @ v)


class Windows(Idiom):
    """Windows of two, (batch * window, head, 2, 2): Swin's."""

    def given(self):
        return (torch.randn(BATCH, 6, DIM),)

    def more(self):
        self.num_heads = HEAD

    def forward(self, x):
        x = x.view(BATCH * 3, 2, DIM)
        q, k, v = self.heads(x)
        a = self.met(self.weights(self.scores(q @ k.mT).softmax(-1)))
        return self.merge(self.gate(a @ v)).view(BATCH, 6, DIM)


class Unfolded(Idiom):
    """A window of three keys around each query, by unfold: each query has keys of its own."""

    n_head = 1
    switches = False

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = (F.pad(t, (0, 0, 1, 1)).unfold(1, 3, 1).mT for t in (k, v))
        s = torch.einsum("bnd,bnwd->bnw", q, k)
        w = s.softmax(-1)
        self.note(lambda: w[:, :, None, :].flatten(0, 1)[:, None])
        return self.out(torch.einsum("bnw,bnwd->bnd", w, v))


class Axial(Idiom):
    """Rows of an image attend within themselves: (batch, row, head, column, column)."""

    def given(self):
        return (torch.randn(BATCH, 4, N, DIM),)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEAD, -1)).transpose(2, 3) for t in self.qkv(x).chunk(3, -1))
        s = self.scores((q @ k.mT).flatten(0, 1)).unflatten(0, (BATCH, 4))
        a = self.met(self.weights(s.softmax(-1).flatten(0, 1))).unflatten(0, (BATCH, 4))
        o = self.gate((a @ v).flatten(0, 1)).unflatten(0, (BATCH, 4))
        return self.out(o.transpose(2, 3).flatten(-2))


class Perceiver(Idiom):
    """Learned queries."""

    def more(self):
        self.latent = nn.Parameter(torch.randn(1, HEAD, 2, DIM // HEAD))

    def forward(self, x):
        _, k, v = self.heads(x)
        q = self.latent.expand(BATCH, -1, -1, -1)
        return self.merge(self.gate(self.met(self.weights(self.scores(q @ k.mT).softmax(-1))) @ v))


class SetTransformer(Idiom):
    """Heads folded into the batch by cat and split, a residual inside."""

    def forward(self, x):
        q, k, v = (torch.cat(t.split(DIM // HEAD, 2), 0) for t in self.qkv(x).chunk(3, -1))
        s = q.bmm(k.transpose(1, 2)) / math.sqrt(DIM)
        s = self.scores(s.view(HEAD, BATCH, N, N).transpose(0, 1)).transpose(0, 1).reshape(HEAD * BATCH, N, N)
        a = torch.softmax(s, 2)
        a = self.met(self.weights(a.view(HEAD, BATCH, N, N).transpose(0, 1)))
        a = a.transpose(0, 1).reshape(HEAD * BATCH, N, N)
        o = self.gate(a.bmm(v).view(HEAD, BATCH, N, -1).transpose(0, 1)).transpose(0, 1)
        return torch.cat((q + o.reshape(HEAD * BATCH, N, -1)).split(BATCH, 0), 2)


class NonLocal(Idiom):
    """A non-local block of images: flattened positions, (batch, position, channel)."""

    n_head = 1

    def given(self):
        return (torch.randn(BATCH, DIM, 2, 3),)

    def forward(self, x):
        t = x.flatten(2).mT
        q, k, v = self.qkv(t).chunk(3, -1)
        s = self.scores(torch.matmul(q, k.mT)[:, None])[:, 0]
        a = self.met(self.weights(F.softmax(s, dim=-1)[:, None]))[:, 0]
        return self.gate(torch.matmul(a, v)[:, None])[:, 0].mT.unflatten(2, (2, 3)) + x


class SAGAN(Idiom):
    """energy (b, n, n), v @ attention.mT, a learned factor: SAGAN's."""

    n_head = 1

    def more(self):
        self.gamma = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        q, k, v = (t.mT for t in self.qkv(x).chunk(3, -1))
        energy = self.scores(torch.bmm(q.mT, k)[:, None])[:, 0]
        attention = self.met(self.weights(energy.softmax(-1)[:, None]))[:, 0]
        out = self.gate(torch.bmm(v, attention.permute(0, 2, 1)).mT[:, None])[:, 0]
        return self.gamma * out + x


class ChannelAttention(Idiom):
    """Attention over channels, not positions: XCiT's."""

    def forward(self, x):
        q, k, v = (F.normalize(t.mT, dim=-1) for t in self.heads(x))
        a = self.met(self.weights(self.scores(q @ k.mT * 3).softmax(-1)))
        return self.merge(self.gate(a @ v).mT)


class SlotAttention(Idiom):
    """A softmax over slots, then weights divided by their sums over inputs."""

    n_head = 1
    switches = False

    def more(self):
        self.slots = nn.Parameter(torch.randn(1, 3, DIM))

    def forward(self, x):
        _, k, v = self.qkv(x).chunk(3, -1)
        dots = torch.einsum("bid,bjd->bij", self.slots.expand(BATCH, -1, -1), k)
        a = dots.softmax(dim=1) + 1e-8
        a = a / a.sum(dim=-1, keepdim=True)
        self.note(lambda: a[:, None])
        return torch.einsum("bjd,bij->bid", v, a)


class Hopfield(Idiom):
    """Stored patterns are parameters: keys and values of a memory."""

    n_head = 1

    def more(self):
        self.memory = nn.Parameter(torch.randn(7, DIM))

    def forward(self, x):
        s = self.scores((x @ self.memory.T)[:, None])[:, 0]
        a = self.met(self.weights(s.softmax(-1)[:, None]))[:, 0]
        return self.gate((a @ self.memory)[:, None])[:, 0]


class LSTMDecoder(Idiom):
    """A decoder that attends step by step: one query each."""

    n_head = 1

    def more(self):
        self.cell = nn.GRUCell(DIM, DIM)

    def forward(self, x):
        h, outs = x.mean(1), []
        for step in range(3):
            s = self.scores(torch.bmm(x, h[:, :, None]).mT[:, None], step)
            a = self.met(self.weights(s.softmax(-1), step), step)
            c = self.gate(a @ x[:, None], step)[:, 0, 0]
            h = self.cell(c, h)
            outs.append(h)
        return torch.stack(outs, 1)


class Numpy(Idiom):
    """Weights leave PyTorch and come back."""

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.met((q @ k.mT).softmax(-1))
        return self.merge(torch.from_numpy(a.numpy() @ v.detach().numpy()))


class SoftmaxInNumpy(Idiom):
    """Scores leave PyTorch."""

    def forward(self, x):
        import numpy as np

        q, k, v = self.heads(x)
        s = (q @ k.mT).numpy()
        e = np.exp(s)
        a = self.met(torch.from_numpy(e / e.sum(-1, keepdims=True)))
        return self.merge(a @ v)


class Vmapped(Idiom):
    """torch.vmap over heads."""

    def forward(self, x):
        q, k, v = self.heads(x)
        self.note(lambda: (q @ k.mT).softmax(-1))
        out = torch.vmap(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, in_dims=1, out_dims=1)(q, k, v)
        return self.merge(out)


class Gat(Idiom):
    """A graph's edges: exp, scatter, divide, scatter."""

    n_head = 1

    def given(self):
        return torch.randn(N, DIM), torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 2, 0]])

    def forward(self, x, edges):
        h = self.out(x)
        src, dst = edges
        e = F.leaky_relu((h[src] * h[dst]).sum(-1) * 0.3)
        p = e.exp()
        total = torch.zeros(N).index_add_(0, dst, p)
        a = p / total[dst]
        dense = torch.zeros(N, N)
        dense[dst, src] = a.detach()
        self.kept = [dense[None, None]]
        return torch.zeros(N, DIM).index_add_(0, dst, a[:, None] * h[src])


class GatDense(Idiom):
    """GAT on a dense graph: a pair of scores added, leaky relu, -9e15 where there is no edge."""

    n_head = 1

    def given(self):
        return (torch.randn(N, DIM),)

    def more(self):
        self.a = nn.Parameter(torch.randn(2 * DIM, 1))

    def forward(self, x):
        h = self.out(x)
        e = F.leaky_relu(h @ self.a[:DIM] + (h @ self.a[DIM:]).T, 0.2)
        adj = torch.eye(N) + torch.eye(N).roll(1, 0)
        s = torch.where(adj > 0, e, -9e15 * torch.ones_like(e))
        s = self.scores(s[None, None])[0, 0]
        a = self.met(self.weights(F.softmax(s, dim=1)[None, None]))[0, 0]
        return F.elu(self.gate(torch.matmul(a, h)[None, None])[0, 0])


class MixtureOfExperts(Idiom):
    """A router beside attention is no attention."""

    def more(self):
        self.router = nn.Linear(DIM, 4)
        self.experts = nn.ModuleList([nn.Linear(DIM, DIM) for _ in range(4)])

    def forward(self, x):
        q, k, v = self.heads(x)
        x = x + self.merge(self.gate(self.met(self.weights(self.scores(q @ k.mT).softmax(-1))) @ v))
        gates = F.softmax(self.router(x), dim=-1)
        return (gates[..., None] * torch.stack([expert(x) for expert in self.experts], -2)).sum(-2)


class Luong(Idiom):
    """General scores, q W k, and one query for each sequence."""

    n_head = 1

    def more(self):
        self.w = nn.Linear(DIM, DIM, bias=False)

    def given(self):
        return torch.randn(BATCH, DIM), torch.randn(BATCH, N, DIM)

    def forward(self, h, memory):
        s = torch.bmm(self.w(memory), h.unsqueeze(2)).squeeze(2)
        s = self.scores(s[:, None, None])[:, 0, 0]
        a = self.met(self.weights(F.softmax(s, dim=1)[:, None, None]))[:, 0, 0]
        return self.gate(torch.bmm(a.unsqueeze(1), memory)[:, None])[:, 0].squeeze(1)


class CoAttention(Idiom):
    """Two softmaxes of one table of scores: rows look at columns, columns at rows."""

    n_head = 1

    def given(self):
        return torch.randn(BATCH, N, DIM), torch.randn(BATCH, 7, DIM)

    def forward(self, x, y):
        s = x @ y.mT
        a = self.met(self.weights(self.scores(s[:, None]).softmax(-1)))[:, 0]
        one = self.gate((a @ y)[:, None])[:, 0]
        b = self.met(self.weights(self.scores(s.mT[:, None], 1).softmax(-1), 1), 1)[:, 0]
        two = self.gate((b @ x)[:, None], 1)[:, 0]
        return torch.cat([one, two], 1)


class BiDAF(Idiom):
    """max over words, then a softmax: a query of its own."""

    n_head = 1

    def forward(self, x):
        s = x @ x.mT
        b = self.scores(s.max(-1).values[:, None, None])[:, 0, 0]
        b = self.met(self.weights(b.softmax(-1)[:, None, None]))[:, 0]
        return self.gate(torch.bmm(b, x)[:, None])[:, 0]


class TopK(Idiom):
    """Scores below the third largest are masked."""

    def forward(self, x):
        q, k, v = self.heads(x)
        s = q @ k.mT
        kth = s.topk(3, -1).values[..., -1:]
        a = self.scores(s.masked_fill(s < kth, -math.inf)).softmax(-1)
        return self.merge(self.gate(self.met(self.weights(a)) @ v))


class TopKAfter(Idiom):
    """Weights below the third largest are set to 0."""

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.weights(self.scores(q @ k.mT).softmax(-1))
        kth = a.topk(3, -1).values[..., -1:]
        a = torch.where(a < kth, torch.zeros_like(a), a)
        return self.merge(self.gate(self.met(a) @ v))


class Temperature(Idiom):
    """A learned temperature, LSA of small ViTs: the diagonal is masked."""

    def more(self):
        self.temperature = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        q, k, v = self.heads(x)
        s = q @ k.mT * self.temperature.exp()
        s = s.masked_fill(torch.eye(N).bool(), -torch.finfo(s.dtype).max)
        return self.merge(self.gate(self.met(self.weights(self.scores(s).softmax(-1))) @ v))


class Gated(Idiom):
    """A sigmoid gate on the outputs of heads."""

    def more(self):
        self.g = nn.Linear(DIM, HEAD)

    def forward(self, x):
        q, k, v = self.heads(x)
        o = self.gate(self.met(self.weights(self.scores(q @ k.mT).softmax(-1))) @ v)
        return self.merge(o * self.g(x).sigmoid().mT[..., None])


class Sparse(Idiom):
    """torch.sparse.softmax."""

    n_head = 1

    def given(self):
        return (torch.randn(N, DIM),)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        a = torch.sparse.softmax((q @ k.T).to_sparse(), 1)
        self.kept = [a.to_dense().detach()[None, None]]
        return torch.sparse.mm(a, v)


class Threaded(Idiom):
    """Attention in another thread."""

    def forward(self, x):
        import threading

        out = []

        def work():
            with torch.no_grad():
                q, k, v = self.heads(x)
                out.append(self.merge(self.met((q @ k.mT).softmax(-1)) @ v))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return out[0]


class Collapsed(Idiom):
    """Keys shortened by a projection: Linformer."""

    def more(self):
        self.e = nn.Parameter(torch.randn(3, N))

    def forward(self, x):
        q, k, v = self.heads(x)
        k, v = self.e @ k, self.e @ v
        return self.merge(self.gate(self.met(self.weights(self.scores(q @ k.mT).softmax(-1))) @ v))


class ThreeOperands(Idiom):
    """Weights, values and the output projection in one einsum."""

    def more(self):
        self.o = nn.Parameter(torch.randn(HEAD, DIM // HEAD, DIM))

    def forward(self, x):
        q, k, v = self.heads(x)
        a = self.met((q @ k.mT).softmax(-1))
        return torch.einsum("bhij,bhjd,hdo->bio", a, v, self.o)


class AverageOfHeads(Idiom):
    """The mean of heads' weights meets one set of values."""

    n_head = 1
    switches = False

    def forward(self, x):
        q, k = (t.unflatten(-1, (HEAD, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)[:2])
        v = self.qkv(x).chunk(3, -1)[2]
        a = (q @ k.mT).softmax(-1).mean(1)
        self.note(lambda: a[:, None])
        return a @ v
