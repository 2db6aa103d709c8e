"""Plain code lent to files that leave a part out: what `d2l` gives such homework, and earlier answers.

It is source text that needs torch alone, separate from the references, and an exercise under check never gets
its own name from here. The `d2l` names behave as that package's do: DotProductAttention returns one tensor.
"""

from __future__ import annotations

IMPORTS = {
    "torch": "import torch",
    "nn": "from torch import nn",
    "F": "from torch.nn import functional as F",
    "math": "import math",
    "np": "import numpy as np",
}

MASKED_SOFTMAX = '''
import torch

def masked_softmax(X, valid_lens=None):
    """Softmax over the first keys of each row; a large negative number hides the rest."""
    if valid_lens is None:
        return torch.softmax(X, dim=-1)
    lens = valid_lens if valid_lens.dim() == 2 else valid_lens.unsqueeze(1)
    past = torch.arange(X.shape[-1], device=X.device) >= lens.unsqueeze(-1)
    return torch.softmax(X.masked_fill(past, max(-1e6, torch.finfo(X.dtype).min)), dim=-1)
'''

RNN_STEP = '''
import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    """tanh(x W_x + h W_h + b)."""
    return torch.tanh(torch.matmul(x_t, W_x) + torch.matmul(h_prev, W_h) + b)
'''

LSTM_STEP = '''
import torch

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    """The next hidden state and cell."""
    forget = torch.sigmoid(x_t @ W_f + h_prev @ U_f + b_f)
    enter = torch.sigmoid(x_t @ W_i + h_prev @ U_i + b_i)
    leave = torch.sigmoid(x_t @ W_o + h_prev @ U_o + b_o)
    c = forget * c_prev + enter * torch.tanh(x_t @ W_c + h_prev @ U_c + b_c)
    return leave * torch.tanh(c), c
'''

GRU_STEP = '''
import torch

def gru_step(x_t, h_prev, W_z, U_z, b_z, W_r, U_r, b_r, W_h, U_h, b_h):
    """The next state."""
    z = torch.sigmoid(x_t @ W_z + h_prev @ U_z + b_z)
    r = torch.sigmoid(x_t @ W_r + h_prev @ U_r + b_r)
    new = torch.tanh(x_t @ W_h + (r * h_prev) @ U_h + b_h)
    return z * h_prev + (1 - z) * new
'''

DOT_PRODUCT = '''
import math
import torch
from torch import nn

class DotProductAttention(nn.Module):
    """Returns one tensor, and keeps its weights in `attention_weights`, as d2l's does."""

    def __init__(self, dropout=0.0, num_heads=None):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1])
        self.attention_weights = masked_softmax(scores, valid_lens)
        return self.dropout(self.attention_weights) @ values
'''

ADDITIVE = '''
import torch
from torch import nn

class AdditiveAttention(nn.Module):
    """Returns one tensor, and keeps its weights in `attention_weights`, as d2l's does."""

    def __init__(self, num_hiddens, dropout=0.0, **kwargs):
        super().__init__()
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        together = torch.tanh(self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None])
        self.attention_weights = masked_softmax(self.w_v(together)[..., 0], valid_lens)
        return self.dropout(self.attention_weights) @ values
'''

FRAME = '''
import inspect
import torch
from torch import nn
from torch.nn import functional as F
try:
    from matplotlib import pyplot as plt
except ImportError:
    pass

def check_shape(a, shape):
    """Assert that a tensor has this shape."""
    assert a.shape == shape, f"tensor's shape {a.shape} != expected shape {shape}"

def add_to_class(Class):
    """Register a function as a method."""
    def wrapper(obj):
        setattr(Class, obj.__name__, obj)
        return obj
    return wrapper

class HyperParameters:
    """`save_hyperparameters` keeps a constructor's arguments as attributes."""

    def save_hyperparameters(self, ignore=()):
        given = inspect.currentframe().f_back.f_locals
        for name, value in given.items():
            if name not in {"self", "__class__", *ignore} and not name.startswith("_"):
                setattr(self, name, value)

class Module(nn.Module, HyperParameters):
    """The base of models."""

    def __init__(self, plot_train_per_epoch=2, plot_valid_per_epoch=1):
        super().__init__()

class Encoder(nn.Module):
    """The interface of an encoder."""

    def __init__(self, **kwargs):
        super().__init__()

    def forward(self, X, *args):
        raise NotImplementedError

class Decoder(nn.Module):
    """The interface of a decoder."""

    def __init__(self, **kwargs):
        super().__init__()

    def init_state(self, enc_all_outputs, *args):
        raise NotImplementedError

    def forward(self, X, state):
        raise NotImplementedError

class AttentionDecoder(Decoder):
    """The interface of a decoder with attention."""

    @property
    def attention_weights(self):
        raise NotImplementedError

def init_seq2seq(module):
    """Xavier's weights for linear and recurrent layers."""
    if type(module) is nn.Linear:
        nn.init.xavier_uniform_(module.weight)
    if type(module) is nn.GRU:
        for name in module._flat_weights_names:
            if "weight" in name:
                nn.init.xavier_uniform_(module._parameters[name])

class GRU(nn.Module):
    """A multi-layer GRU over (steps, batch, inputs)."""

    def __init__(self, num_inputs, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.rnn = nn.GRU(num_inputs, num_hiddens, num_layers, dropout=dropout)

    def forward(self, inputs, H_c=None):
        return self.rnn(inputs, H_c)

class Seq2SeqEncoder(Encoder):
    """(batch, steps) -> outputs (steps, batch, hiddens) and state (layers, batch, hiddens) of a GRU."""

    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = GRU(embed_size, num_hiddens, num_layers, dropout)
        self.apply(init_seq2seq)

    def forward(self, X, *args):
        embs = self.embedding(X.t().type(torch.int64))
        return self.rnn(embs)
'''

# name -> source, in the order in which one may use another
PARTS = {
    "masked_softmax": MASKED_SOFTMAX,
    "rnn_step": RNN_STEP,
    "lstm_step": LSTM_STEP,
    "gru_step": GRU_STEP,
    "DotProductAttention": DOT_PRODUCT,
    "AdditiveAttention": ADDITIVE,
}
D2L = {
    "": FRAME,
    "masked_softmax": MASKED_SOFTMAX,
    "DotProductAttention": DOT_PRODUCT,
    "AdditiveAttention": ADDITIVE,
}
# A part that is made of another.
USES = {"DotProductAttention": ("masked_softmax",), "AdditiveAttention": ("masked_softmax",)}
# The names that the frame defines and a bare call may use.
FRAME_NAMES = (
    *("check_shape", "add_to_class", "HyperParameters", "Module", "Encoder", "Decoder", "AttentionDecoder"),
    *("init_seq2seq", "GRU", "Seq2SeqEncoder"),
)


def lent(undefined: frozenset[str], under_check: tuple[str, ...]) -> list[list[str]]:
    """Name and source of what a file uses without defining it, never what is under check.

    >>> [name for name, _ in lent(frozenset({"masked_softmax", "torch"}), ("rnn_step",))]
    ['torch', 'masked_softmax']
    """
    wanted = [[name, source] for name, source in IMPORTS.items() if name in undefined]
    for name, source in PARTS.items():
        if name in undefined and name not in under_check:
            # Helpers of a lent part are its own, and hidden from the file unless it asks for them.
            inner = "".join(PARTS[each] for each in USES.get(name, ()))
            wanted.append([name, _enclosed(name, inner + source) if inner else source])
    frame = [name for name in FRAME_NAMES if name in undefined and name not in under_check]
    if frame:
        wanted += [[name, _enclosed(name, FRAME)] for name in frame]
    return wanted


def d2l(under_check: tuple[str, ...]) -> list[list[str]]:
    """The sources that make the lent `d2l`; what is under check is withheld by the loader."""
    return [[name, source] for name, source in D2L.items()]


def _enclosed(name: str, source: str) -> str:
    """Source that defines `name` alone, with its helpers out of sight."""
    return f"_scope = {{}}\nexec({source!r}, _scope)\n{name} = _scope[{name!r}]\ndel _scope\n"
