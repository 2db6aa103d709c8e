"""Known mistakes of the recurrent decoder, as edits of one right variant."""

from __future__ import annotations

from regard.exercises.spec import Mistake

STEPS = """import torch
from torch import nn

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        both = self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]
        scores = self.w_v(torch.tanh(both))[..., 0]
        if valid_lens is not None:
            position = torch.arange(keys.shape[1], device=keys.device)
            hidden = position >= valid_lens[:, None, None]
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(self.dropout(weights), values)

class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = AdditiveAttention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        outputs, hidden_state = enc_all_outputs
        outputs = outputs.permute(1, 0, 2)
        return [outputs, hidden_state, enc_valid_lens]

    def forward(self, X, state):
        enc_outputs, hidden_state, enc_valid_lens = state
        words = self.embedding(X).permute(1, 0, 2)
        outputs = []
        for word in words:
            query = hidden_state[-1][:, None, :]
            context = self.attention(query, enc_outputs, enc_outputs, enc_valid_lens)[:, 0, :]
            x = torch.cat([context, word], dim=-1)
            out, hidden_state = self.rnn(x[None], hidden_state)
            outputs.append(out[0])
        steps = torch.stack(outputs, dim=1)
        logits = self.dense(steps)
        return logits, [enc_outputs, hidden_state, enc_valid_lens]
"""

QUERY = "query = hidden_state[-1][:, None, :]"
QUERY_PLACE = "Look at where the query comes from."
STEP = "out, hidden_state = self.rnn(x[None], hidden_state)"
RETURN = "return logits, [enc_outputs, hidden_state, enc_valid_lens]"
ATTEND = "self.attention(query, enc_outputs, enc_outputs, enc_valid_lens)"

MISTAKES = (
    Mistake(
        "the query is the first layer's state",
        (
            "Right with one layer only.",
            QUERY_PLACE,
            "hidden_state is (layers, batch, hiddens), and index 0 is the lowest layer.",
            "Use hidden_state[-1], the last layer.",
        ),
        edits=((QUERY, "query = hidden_state[0][:, None, :]"),),
    ),
    Mistake(
        "the query is the mean of all layers",
        (
            "Right with one layer only.",
            QUERY_PLACE,
            "The last layer alone asks.",
            "Use hidden_state[-1].",
        ),
        edits=((QUERY, "query = hidden_state.mean(0)[:, None, :]"),),
    ),
    Mistake(
        "the query stays the encoder's last state",
        (
            "The first step is right; every step looks at the source in the same way.",
            QUERY_PLACE,
            "It is taken before the loop, or from the state that was passed in.",
            "Take hidden_state[-1] anew in each step.",
        ),
        edits=((QUERY, "query = state[1][-1][:, None, :]"),),
    ),
    Mistake(
        "the query is the state after all words before and this one",
        (
            "The context knows the word of its own step.",
            QUERY_PLACE,
            "The GRU has already made its step when the attention is asked.",
            "Attend first, with the state of the step before; then make the GRU's step.",
        ),
        edits=(
            (
                QUERY,
                "peek = torch.cat([torch.zeros_like(hidden_state[-1]), word], dim=-1)\n"
                "            query = self.rnn(peek[None], hidden_state)[1][-1][:, None, :]",
            ),
        ),
    ),
    Mistake(
        "no attention: the context is the last encoder output",
        (
            "The context is the same in every step.",
            "Look at where the context comes from.",
            "The attention is not asked.",
            "context = attention(query, enc_outputs, enc_outputs, enc_valid_lens).",
        ),
        edits=((f"{ATTEND}[:, 0, :]", "enc_outputs[:, -1]"),),
    ),
    Mistake(
        "no attention: the context is the mean of the encoder outputs",
        (
            "The context is the same in every step.",
            "Look at where the context comes from.",
            "The attention is not asked.",
            "context = attention(query, enc_outputs, enc_outputs, enc_valid_lens).",
        ),
        edits=((f"{ATTEND}[:, 0, :]", "enc_outputs.mean(1)"),),
    ),
    Mistake(
        "lengths are not given to the attention",
        (
            "The decoder looks at the source's padding.",
            "Look at what the attention is called with.",
            "enc_valid_lens is missing from the call.",
            "attention(query, enc_outputs, enc_outputs, enc_valid_lens).",
        ),
        edits=((ATTEND, "self.attention(query, enc_outputs, enc_outputs, None)"),),
    ),
    Mistake(
        "the hidden state is not carried from step to step",
        (
            "The first step is right; each other forgets the words before it.",
            "Look at what the GRU is given and what it returns.",
            "Every step starts from the encoder's last state.",
            "Keep the state that the GRU returns for the next step.",
        ),
        edits=((STEP, "out, hidden_state = self.rnn(x[None], state[1])"),),
    ),
    Mistake(
        "the old hidden state is returned",
        (
            "The logits are right; decoding on from the returned state forgets the words so far.",
            "Look at the returned state.",
            "It holds the state that was passed in.",
            "Return the hidden state after the last step.",
        ),
        edits=((RETURN, "return logits, [enc_outputs, state[1], enc_valid_lens]"),),
    ),
    Mistake(
        "the returned state has no lengths",
        (
            "The first call is right; decoding on from the returned state looks at the padding.",
            "Look at the returned state.",
            "Its lengths are None.",
            "Return enc_valid_lens as they were passed in.",
        ),
        edits=((RETURN, "return logits, [enc_outputs, hidden_state, None]"),),
    ),
    Mistake(
        "the decoder starts from zeros",
        (
            "The encoder's last state has no say.",
            "Look at init_state.",
            "The hidden state is made anew.",
            "Start from the encoder's hidden state.",
        ),
        edits=(("return [outputs, hidden_state,", "return [outputs, torch.zeros_like(hidden_state),"),),
    ),
    Mistake(
        "every layer starts from the encoder's last layer",
        (
            "Right with one layer only.",
            "Look at init_state.",
            "Each layer of the decoder starts from the same layer of the encoder.",
            "Pass the encoder's hidden state on as it is.",
        ),
        edits=(
            ("return [outputs, hidden_state,", "return [outputs, hidden_state[-1:].expand_as(hidden_state),"),
        ),
    ),
    Mistake(
        "encoder outputs turned by `reshape` instead of a permutation",
        (
            "Sequences are cut into pieces of one another.",
            "Look at init_state.",
            "reshape keeps the order of numbers; swapping batch and time changes it.",
            "outputs.permute(1, 0, 2).",
        ),
        edits=(("outputs.permute(1, 0, 2)", "outputs.reshape(outputs.shape[1], outputs.shape[0], -1)"),),
    ),
    Mistake(
        "embeddings turned by `reshape` instead of a permutation",
        (
            "Sequences read one another's words.",
            "Look at how the embeddings are turned to time first.",
            "reshape keeps the order of numbers; swapping batch and time changes it.",
            "embedding(X).permute(1, 0, 2).",
        ),
        edits=(
            ("self.embedding(X).permute(1, 0, 2)", "self.embedding(X).reshape(X.shape[1], X.shape[0], -1)"),
        ),
    ),
    Mistake(
        "the loop runs over the batch instead of the steps",
        (
            "Each sequence is read as if it were a step.",
            "Look at the axis that the loop runs over.",
            "The first axis of the embeddings is the batch.",
            "Turn the embeddings to (steps, batch, embed) before the loop.",
        ),
        edits=(("self.embedding(X).permute(1, 0, 2)", "self.embedding(X)"),),
    ),
    Mistake(
        "logits are returned time first",
        (
            "The logits are (steps, batch, vocab).",
            "Look at how the steps are put together.",
            "The batch must be the first axis.",
            "Stack along axis 1, or permute at the end.",
        ),
        edits=(("torch.stack(outputs, dim=1)", "torch.stack(outputs, dim=0)"),),
    ),
    Mistake(
        "only the last step's logits are returned",
        (
            "The logits have one step.",
            "Look at how the steps are put together.",
            "One row of logits for each word is asked for.",
            "Keep the output of each step.",
        ),
        edits=(("torch.stack(outputs, dim=1)", "torch.stack(outputs[-1:], dim=1)"),),
    ),
    Mistake(
        "logits from the first layer's state",
        (
            "Right with one layer only.",
            "Look at what is kept of each step.",
            "The output of a GRU is its last layer's state.",
            "Keep the GRU's output, or hidden_state[-1].",
        ),
        edits=(("outputs.append(out[0])", "outputs.append(hidden_state[0])"),),
    ),
    Mistake(
        "logits from the context",
        (
            "The words have a say only through the next step's query.",
            "Look at what is kept of each step.",
            "dense must get the GRU's output.",
            "Keep the GRU's output.",
        ),
        edits=(("outputs.append(out[0])", "outputs.append(context)"),),
    ),
    Mistake(
        "the context is not given to the GRU",
        (
            "The source has no say in the logits but through the first state.",
            "Look at what enters the GRU.",
            "Zeros stand where the context belongs.",
            "Join (context, embedding).",
        ),
        edits=(("torch.cat([context, word]", "torch.cat([torch.zeros_like(context), word]"),),
    ),
    Mistake(
        "a softmax of the logits",
        (
            "The logits are positive and sum to 1.",
            "Look at the end of forward.",
            "cross_entropy takes the softmax itself: logits are asked for.",
            "Return dense(...) as it is.",
        ),
        edits=(("logits = self.dense(steps)", "logits = torch.softmax(self.dense(steps), dim=-1)"),),
    ),
    Mistake(
        "scores without the tanh",
        (
            "The query has no say: every step looks at the source in the same way.",
            "Look at the attention's scores.",
            "Without a tanh the query's part is the same in every score, which a softmax ignores.",
            "w_v . tanh(W_q q + W_k k).",
        ),
        edits=(("self.w_v(torch.tanh(both))", "self.w_v(both)"),),
    ),
    Mistake(
        "dot products in the place of additive scores",
        (
            "The layers of the attention have no say.",
            "Look at the attention's scores.",
            "They are products of query and key.",
            "w_v . tanh(W_q q + W_k k).",
        ),
        edits=(
            (
                "scores = self.w_v(torch.tanh(both))[..., 0]",
                "scores = torch.bmm(queries, keys.transpose(1, 2)) / keys.shape[-1] ** 0.5",
            ),
        ),
    ),
    Mistake(
        "the attention's mask is upside down",
        (
            "The decoder looks at the padding only.",
            "Look at the comparison of positions with lengths.",
            "True means hidden here, and the comparison is true for the real words.",
            "Hide the positions at or past the length.",
        ),
        edits=(("position >= valid_lens", "position < valid_lens"),),
    ),
    Mistake(
        "one position too many is visible",
        (
            "The decoder looks at one position of padding.",
            "Look at the comparison of positions with lengths.",
            "Positions count from 0, so that of the length is already padding.",
            "Hide where position >= length.",
        ),
        edits=(("position >= valid_lens", "position > valid_lens"),),
    ),
    Mistake(
        "the state is kept on the module",
        (
            "The first call is right; a second one goes on where it ended.",
            "Look for an attribute of self that forward writes and reads.",
            "A new sentence starts with the state of the old one.",
            "Start from the state that is passed in.",
        ),
        edits=(
            (
                "words = self.embedding(X)",
                'hidden_state = getattr(self, "kept", hidden_state)\n        words = self.embedding(X)',
            ),
            ("logits = self.dense(steps)", "self.kept = hidden_state\n        logits = self.dense(steps)"),
        ),
    ),
    Mistake(
        "no dropout",
        (
            "Train and eval mode give the same.",
            "Look for what the argument dropout does.",
            "Neither attention nor GRU is given it.",
            "AdditiveAttention(num_hiddens, dropout) and nn.GRU(..., dropout=dropout).",
        ),
        edits=(
            ("AdditiveAttention(num_hiddens, dropout)\n", "AdditiveAttention(num_hiddens, 0.0)\n"),
            (", num_layers, dropout=dropout)\n", ", num_layers)\n"),
        ),
    ),
    Mistake(
        "dropout in eval mode too",
        (
            "In eval mode the result differs from call to call.",
            "Look at how dropout is applied.",
            "nn.functional.dropout does not know of eval mode unless it is told.",
            "Use nn.Dropout, or pass training=self.training.",
        ),
        edits=(("self.dropout(weights)", "nn.functional.dropout(weights, self.dropout.p)"),),
    ),
    Mistake(
        "a gradient that does not get through the steps",
        (
            "The numbers are right, and gradients stop after one step.",
            "Look for detach, .data or no_grad.",
            "The decoder learns through all of its steps, back to the encoder.",
            "Carry the hidden state as it is.",
        ),
        edits=((STEP, "out, hidden_state = self.rnn(x[None], hidden_state.detach())"),),
    ),
    Mistake(
        "positions on the wrong device",
        (
            "Right on the CPU, an error on any other device.",
            "Look at torch.arange.",
            "A new tensor is on the CPU unless it is told otherwise.",
            "Write torch.arange(..., device=keys.device).",
        ),
        edits=((", device=keys.device", ""),),
    ),
)
