"""Every experiment has the verdict that is known, and another one when the library is broken."""

import ast
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.attention.delta import DeltaAttended, attend_delta
from regard.attention.feature_maps import Quadratic
from regard.attention.scores import ScoreRule
from regard.attention.softmax import Attended, attend, attend_hard, weights
from regard.attention.visibility import Visibility
from regard.experiments import importance
from regard.lab import spec
from regard.lab.catalogue import EXPERIMENTS, find
from regard.lab.spec import perform
from regard.layers.attention import merge_heads, split_heads
from regard.layers.cache import LayerCache
from regard.layers.eviction import Evict
from regard.recurrent.loops import gru_forward, lstm_forward


def replace_function(patch, function, broken):
    """Put `broken` in the place of `function` in every module of the library that has imported it."""
    places = [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] == "regard"
        for name, value in vars(module).items()
        if value is function
    ]
    assert places
    for module, name in places:
        patch.setattr(module, name, broken)


def wrong_scale(value):
    """Scores divided by something else than the root of the dimension."""

    def change(patch):
        patch.setattr(ScoreRule, "scale_for", lambda self, qk_dim: value(self, qk_dim))

    return change


def soft_in_place_of_hard(patch):
    """Hard attention that is soft, so that it has gradients."""

    def soft(q, k, v, rule=None, *, straight_through=False):
        return attend(q, k, v, rule).out

    replace_function(patch, attend_hard, soft)


def only_the_last_key(patch):
    """Attention that sees nothing but the last key."""
    replace_function(patch, attend, lambda q, k, v, *args, **kwargs: attend(q, k[:, :, -1:], v[:, :, -1:]))


def forget_gates_half_shut(patch):
    """An LSTM whose forget gates keep half of the state, whatever their weights."""

    def changed(X, h0, c0, weights, **kwargs):
        shut = {name: torch.zeros_like(getattr(weights, name)) for name in ("W_f", "U_f", "b_f")}
        return lstm_forward(X, h0, c0, replace(weights, **shut), **kwargs)

    replace_function(patch, lstm_forward, changed)


def update_gates_upside_down(patch):
    """A GRU whose update gates replace what they should keep."""

    def changed(X, h0, weights, **kwargs):
        turned = {name: -getattr(weights, name) for name in ("W_z", "U_z", "b_z")}
        return gru_forward(X, h0, replace(weights, **turned), **kwargs)

    replace_function(patch, gru_forward, changed)


def uniform_weights(patch):
    """Attention that averages all values alike."""
    replace_function(patch, attend, lambda q, k, v, *args, **kwargs: attend(torch.zeros_like(q), k, v))


def reshape_in_place_of_transpose(patch):
    """Heads split by a reshape alone."""
    replace_function(patch, split_heads, lambda x, n_head: x.reshape(x.shape[0], n_head, x.shape[1], -1))


def nothing_is_hidden(patch):
    """The causal rule is forgotten on the way to every path."""
    patch.setattr(Visibility, "simplified", lambda self, n_query, n_key: Visibility())


def windows_one_wider(patch):
    """A window that counts the tokens before, and forgets that a token counts itself."""
    real = Visibility.simplified

    def simplified(self, n_query, n_key):
        wider = self if self.window is None else replace(self, window=self.window + 1)
        return real(wider, n_query, n_key)

    patch.setattr(Visibility, "simplified", simplified)


def normalised_queries(patch):
    """Scores that no longer depend on the length of a query."""
    real = ScoreRule.similarity

    def similarity(self, q, k):
        return real(self, torch.nn.functional.normalize(q, dim=-1), k)

    patch.setattr(ScoreRule, "similarity", similarity)


def cache_repeats_heads(patch):
    """A cache that keeps each key head twice."""
    real = LayerCache.append

    def append(self, k, v):
        return real(self, *(t.repeat_interleave(2, 1) if t.shape[1] < 8 else t for t in (k, v)))

    patch.setattr(LayerCache, "append", append)


def inexact_features(patch):
    """A quadratic map whose first feature is a little too large."""
    real = Quadratic.phi

    def phi(self, x):
        features = real(self, x)
        return torch.cat([1.01 * features[..., :1], features[..., 1:]], -1)

    patch.setattr(Quadratic, "phi", phi)


def everyone_for_himself(patch):
    """Attention in which each token gets its own value only."""

    def for_himself(q, k, v, rule=None, **kwargs):
        return Attended(v.repeat_interleave(q.shape[1] // v.shape[1], 1), attend(q, k, v, rule).lse)

    replace_function(patch, attend, for_himself)


def merged_without_transpose(patch):
    """Heads merged by a reshape alone."""
    replace_function(patch, merge_heads, lambda x: x.reshape(x.shape[0], x.shape[2], -1))


def importance_upside_down(patch):
    """Importance with its sign turned."""
    replace_function(patch, importance, lambda *args, **kwargs: -importance(*args, **kwargs))


def only_the_latest_are_kept(patch):
    """A cache that keeps its last positions, whatever the policy."""

    def kept(self, looked_at, key_mask=None):
        n_key = looked_at.shape[2]
        return torch.arange(max(0, n_key - self.budget), n_key).expand(*looked_at.shape[:2], -1)

    patch.setattr(Evict, "kept", kept)


def sinks_left_out(patch):
    """A learned sink that takes no part in the softmax."""

    def without(function):
        return lambda q, k, *v, **kwargs: function(q, k, *v[:-1], replace(v[-1], sink=None), **kwargs)

    for function in (attend, weights):
        replace_function(patch, function, without(function))


def gains_without_norm(patch):
    """A norm that multiplies by its gains alone."""
    patch.setattr(torch.nn.RMSNorm, "forward", lambda self, x: x * self.weight)


def one_key_head_read_one_off(patch):
    """Where all heads share one key, each value is taken for that of the token before."""

    def shifted(q, k, v, rule=None, **kwargs):
        shared = k.shape[1] == 1 < q.shape[1]
        return attend(q, k, v.roll(1, 2) if shared else v, rule, **kwargs)

    replace_function(patch, attend, shifted)


def nothing_is_corrected(patch):
    """A delta rule that adds what it is given, and never reads what is there."""

    def added(q, k, v, log_decay, beta, *, scale=None, state=None, chunk=64):
        pairs = (k * beta[..., None])[..., None] * v[..., None, :]
        states = pairs.cumsum(2)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return DeltaAttended((q[..., None, :] @ states)[..., 0, :] * scale, states[:, :, -1])

    replace_function(patch, attend_delta, added)


def nearly_hard_without_scaling(patch):
    """Unscaled weights that are an argmax but for a share that falls as 1 / d^2."""

    def nearly_hard(q, k, rule=None):
        table = weights(q, k, rule)
        if rule is None or rule.scale != 1.0:
            return table
        share, n_key = q.shape[-1] ** -2.0, table.shape[-1]
        chosen = torch.nn.functional.one_hot(table.argmax(-1), n_key).to(table.dtype)
        return (1 - share) * chosen + share / n_key

    replace_function(patch, weights, nearly_hard)


BREAKS = {  # one fault or several, each of which must be found
    "variance": wrong_scale(lambda rule, d: 1 / d if rule.scale is None else rule.scale),
    "temperature": wrong_scale(lambda rule, d: 1.0 if rule.scale is None else rule.scale),
    "argmax": soft_in_place_of_hard,
    "memory": (only_the_last_key, forget_gates_half_shut, update_gates_upside_down),
    "bottleneck": uniform_weights,
    "heads": reshape_in_place_of_transpose,
    "causal": nothing_is_hidden,
    "nonlinear": normalised_queries,
    "decoding": cache_repeats_heads,
    "windows": windows_one_wider,
    "sinks": sinks_left_out,
    "qk norm": gains_without_norm,
    "latent": one_key_head_read_one_off,
    "linear": inexact_features,
    "delta": nothing_is_corrected,
    "trained": wrong_scale(lambda rule, d: 0.0),
    "context": everyone_for_himself,
    "wide values": merged_without_transpose,
    "pruning": importance_upside_down,
    "eviction": only_the_latest_are_kept,
    "families": nothing_is_hidden,
}


# Claims of textbooks that do not hold, and what would have to be broken for them to hold.
REFUTED = {
    "gradient": nearly_hard_without_scaling,
    "order": nothing_is_hidden,
}
UNDECIDED = {"pruning"}  # a quick run is too short for these


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_quick_run_has_the_known_verdict(name):
    """As listed; the sentence, the figure and the JSON say what was measured."""
    result = perform(find(name), quick=True, seed=0)
    wanted = "refuted" if name in REFUTED else "undecided" if name in UNDECIDED else "confirmed"
    assert result.verdict == wanted, result.sentence
    assert result.sentence.startswith(wanted.capitalize())
    assert any(ax.has_data() for ax in result.draw.figure.axes)
    assert all(number.low <= number <= number.high for number in result.measurements)
    said = result.as_json()
    assert json.loads(json.dumps(said, allow_nan=False)) == said


FAULTS = [
    (name, fault)
    for name in BREAKS
    for fault in (BREAKS[name] if isinstance(BREAKS[name], tuple) else (BREAKS[name],))
]


def test_every_experiment_is_tried_with_a_broken_library():
    """None is left out of the tests below."""
    assert {*BREAKS, *REFUTED} == set(EXPERIMENTS)


@pytest.mark.parametrize(
    ("name", "fault"), FAULTS, ids=[f"{name}, {fault.__name__}" for name, fault in FAULTS]
)
def test_a_broken_library_is_not_confirmed(name, fault, monkeypatch):
    """One fault in the library, none in the experiment, and the verdict turns."""
    experiment = find(name)  # imported before the fault, as a user would have it
    fault(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a trace warns that its weights no longer add up
        result = perform(experiment, quick=True, seed=0)
    assert result.verdict != "confirmed", result.sentence
    assert name in UNDECIDED or any(check.outcome == "fails" for check in result.checks), result.sentence


@pytest.mark.parametrize("name", REFUTED)
def test_a_refuted_claim_would_hold_in_a_broken_library(name, monkeypatch):
    """The experiment could have confirmed it: with one fault it does."""
    experiment = find(name)
    REFUTED[name](monkeypatch)
    result = perform(experiment, quick=True, seed=0)
    assert result.verdict == "confirmed", result.sentence


def test_no_check_is_given_a_number_without_its_interval():
    """`float` and `.plain` drop an interval: neither stands in the arguments of a comparison."""
    for path in sorted((Path(spec.__file__).parent).glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_check = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            if not is_check or call.func.attr not in ("above", "below", "near"):
                continue
            for node in (part for argument in call.args[1:] for part in ast.walk(argument)):
                assert getattr(node, "id", None) != "float", f"{path.name}:{call.lineno}"
                assert getattr(node, "attr", None) != "plain", f"{path.name}:{call.lineno}"


def test_every_experiment_says_what_it_claims():
    """Each has its id, a claim and a prediction, in whole sentences."""
    for name in EXPERIMENTS:
        experiment = find(name)
        assert experiment.id == name
        assert experiment.claim.endswith(".")
        assert experiment.prediction.endswith(".")
