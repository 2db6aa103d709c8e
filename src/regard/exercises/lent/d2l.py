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
