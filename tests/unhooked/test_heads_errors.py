"""Messages of heads/, as a user meets them."""

import pytest
import torch

import regard.heads
from regard.drawing.figures import curves, head_grid
from regard.errors import ArgumentError, LoadError, ShapeError, UnsupportedError
from regard.experiments import (
    ablated,
    ablation,
    effects,
    importance,
    prune,
    pruning_curve,
    ranked_heads,
    save_pruned,
)
from regard.files.loading import load
from regard.heads import (
    columns_of,
    label,
    logit_attribution,
    measure,
    read_conllu,
    repeated_tokens,
    rollout,
    score_pairs,
    survey,
    value_weighted,
)
from regard.heads.measures import copies, token_facts
from regard.heads.model import attention_of
from regard.layers.block import BlockConfig
from regard.models.pruned import PrunedAttention, stated_kept_heads
from regard.models.transformer import TransformerConfig
from regard.tracing.take import trace
from regard.tracing.traces import Trace


@pytest.fixture(scope="module")
def minilm():
    return load("minilm", random=True)


@pytest.fixture(scope="module")
def gpt2():
    return load("gpt2", random=True)


def test_measures_name_what_they_have():
    """An unknown measure, and a trace without layers."""
    measures = measure(Trace.from_weights(torch.eye(3)))
    with pytest.raises(ArgumentError, match="there is no measure 'sink': there are previous, first"):
        measures["sink"]
    with pytest.raises(ArgumentError, match="no layers to measure"):
        measure(Trace(()))
    with pytest.raises(ArgumentError, match="give both or neither"):
        label(measures, low={})


def test_token_facts_fit_their_tokens():
    """As many ids as tokens, and counts for every id."""
    with pytest.raises(ShapeError, match=r"there are 2 tokens: ids must be as many. Got shape \(3,\)"):
        token_facts(["a", "b"], torch.zeros(3, dtype=torch.long))
    with pytest.raises(ArgumentError, match=r"one number for each id of the vocabulary, 3: .* up to 7"):
        token_facts(["a"], torch.tensor([7]), counts=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ArgumentError, match="copies of tokens are found by their ids"):
        copies(token_facts(["a"]), 0)


def test_flow_says_what_it_needs(minilm, gpt2):
    """Self-attention for rollout, values for norms, a language head for attribution."""
    cross = Trace.from_weights(torch.rand(3, 5), rows=list("abc"), cols=list("vwxyz"))
    with pytest.raises(ArgumentError, match=r"rollout goes through self-attention, .* weights will not do"):
        rollout(cross, 0)
    with pytest.raises(ArgumentError, match="there is no query 9: there are 3"):
        rollout(Trace.from_weights(torch.eye(3)), 9)
    with pytest.raises(ArgumentError, match="traced without its values: trace with keep_v=True"):
        value_weighted(trace(minilm, "abc", layers=[0]))
    with pytest.raises(UnsupportedError, match=r"decoders with a language head. This is encoder"):
        logit_attribution(minilm, "abc", 7)
    with pytest.raises(ArgumentError, match=r"token must lie between 0 and 50256. Got 99999"):
        logit_attribution(gpt2, "abc", 99999)
    with pytest.raises(ArgumentError, match=r"there is no attention 'decoder.0.self': there are encoder.0"):
        attention_of(minilm.model, "decoder.0.self")


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([(0, 12)], "layer 0 has no head 12: it has 0, 1, 2"),
        ([(6, 0)], r"there is no layer 6: layers are 0 to 5 or encoder.0.self"),
        ([("decoder.0.self", 0)], "there is no layer 'decoder.0.self'"),
        ([3], r"heads are pairs \(layer, head\). Got 3"),
        ([(0, 1, 2)], r"heads are pairs \(layer, head\). Got \(0, 1, 2\)"),
    ],
)
def test_prune_names_the_head_that_is_not_there(minilm, heads, message):
    """The message has what there is."""
    with pytest.raises(ArgumentError, match=message):
        prune(minilm, heads)


def test_pruning_again_what_is_gone_is_refused(minilm):
    """A head can go once; a whole model is saved by `save`."""
    smaller = prune(minilm, [(0, 3)])
    with pytest.raises(ArgumentError, match="layer 0 has no head 3: it has 0, 1, 2, 4"):
        prune(smaller, [(0, 3)])
    with pytest.raises(ArgumentError, match=r"has all its heads: regard.files.loading.save"):
        save_pruned(minilm, "nowhere")
    with pytest.raises(ArgumentError, match="order must be 'least first', 'random' or 'most first'"):
        ranked_heads(minilm, torch.zeros(6, 12), "first")
    with pytest.raises(ShapeError, match=r"importance must be \(layer, head\) = \(6, 12\)"):
        pruning_curve(minilm, ["abc"], torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (((0,), (1,)), "one entry for each of the 1 attention layers. Got 2"),
        (((0, 3),), r"different heads from 0 to 2, in order. Got \(0, 3\)"),
        (((1, 0),), "in order. Got"),
        (((1, 1),), "different heads"),
        (((True,),), "kept_heads must be a whole number"),
    ],
)
def test_a_config_lists_heads_that_exist(kept, message):
    """Wrong lists are refused before anything is built."""
    with pytest.raises(ArgumentError, match=message):
        TransformerConfig(
            vocab=5, block=BlockConfig(model_dim=6, n_head=3, ff_dim=7), n_decoder_layer=1, kept_heads=kept
        )


def test_a_damaged_pruned_config_is_a_load_error():
    """What is missing is named, with the file."""
    with pytest.raises(LoadError, match=r"folder: config.json of a pruned model must have family_config"):
        stated_kept_heads({"model_type": "regard_pruned", "kept_heads": [[0]]}, "folder")
    with pytest.raises(LoadError, match="a list of heads for each attention layer"):
        stated_kept_heads({"model_type": "regard_pruned", "family_config": {}, "kept_heads": [0]}, "folder")


def test_a_pruned_layer_says_which_heads_it_has():
    """By their numbers before pruning."""
    layer = PrunedAttention(BlockConfig(model_dim=6, n_head=3, ff_dim=7), (0, 2), causal=True)
    assert "kept=(0, 2) of 3" in repr(layer)


def test_importance_needs_a_loss_and_texts(minilm, gpt2):
    """A model that predicts nothing has none of its own."""
    with pytest.raises(
        UnsupportedError, match="no language-model or masked head, so it has no loss of its own: give `loss`"
    ):
        importance(minilm, ["abc"])
    with pytest.raises(ArgumentError, match="texts must be a list of one text at least"):
        importance(gpt2, [])
    with pytest.raises(ArgumentError, match="texts must be a list"):
        importance(gpt2, "abc")
    with pytest.raises(ArgumentError, match="three tokens at least"):
        importance(gpt2, ["ab"])
    with pytest.raises(ArgumentError, match="there is no layer 12"):
        ablation(gpt2, ["abc"], layers=[12])
    with pytest.raises(ArgumentError, match="layer 0 has no head 12"), ablated(gpt2.model, [(0, 12)]):
        pass
    with pytest.raises(ShapeError, match=r"means must be .* Got None"), ablated(gpt2.model, [(0, 1)], "mean"):
        pass
    with pytest.raises(ArgumentError, match="how must be 'zero' or 'mean'"), ablated(gpt2.model, [], "one"):
        pass


def test_surveys_read_lists_of_texts(minilm):
    """One text at least, of two tokens; no more different tokens than there are."""
    with pytest.raises(ArgumentError, match="texts must be a list of one text at least"):
        survey(minilm, "a text")
    with pytest.raises(ArgumentError, match="n_repeat and n_needle must not be negative"):
        survey(minilm, ["a text"], n_repeat=-1)
    with pytest.raises(ArgumentError, match="n_token different tokens are drawn, from 1 to"):
        repeated_tokens(minilm, 10**6)
    with pytest.raises(ArgumentError, match=r"texts \[0\] have fewer than 2 tokens"):
        survey(load("gpt2", random=True), ["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no sentence"),
        ("1\tone\n", "ten columns with tabs between"),
        ("x\ta\t_\t_\t_\t_\t0\troot\t_\t_\n", "'x' is no number of a word"),
        ("1\ta\t_\t_\t_\t_\t5\troot\t_\t_\n", "word 1 depends on '5'; it must be 0 to 1"),
        ("2\ta\t_\t_\t_\t_\t0\troot\t_\t_\n", "words must be numbered from 1 on"),
        ("# text = b\n1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n", "'a' does not stand in its text"),
    ],
)
def test_a_damaged_treebank_names_its_sentence(tmp_path, text, message):
    """With the line where it begins."""
    path = tmp_path / "tree.conllu"
    path.write_text(text)
    with pytest.raises(LoadError, match=message):
        read_conllu(path)
    with pytest.raises(LoadError, match="cannot be read"):
        read_conllu(tmp_path / "nothing.conllu")


def test_relations_need_words_that_exist(minilm):
    """A pair of a word that is not there is refused; without pairs there is no best head."""
    with pytest.raises(ArgumentError, match=r"pairs are of words 0 to 0. Got \[\(0, 1\)\]"):
        score_pairs(minilm, [("abc", [(0, 3)], [(0, 1)])])
    with pytest.raises(ArgumentError, match="there is no pair of 'pairs' to score"):
        score_pairs(minilm, []).best  # noqa: B018  # asking is what fails


def test_pictures_of_nothing_are_refused():
    """Labels must be known, lines must have points."""
    with pytest.raises(ShapeError, match=r"labels must be rows of a, b, with one at least. Got \['c'\]"):
        head_grid([["c"]], ["a", "b"])
    with pytest.raises(ShapeError, match="with one at least"):
        head_grid([], ["a"])
    with pytest.raises(ShapeError, match="as many x as y"):
        curves({"a": ([0], [1, 2])}, x_label="x", y_label="y")


def test_a_foreign_model_loses_no_head_for_good():
    """Heads of somebody else's module are switched off; what has no head at all says so."""
    with pytest.raises(ArgumentError, match=r"models of this library.*regard\.intervene.*Got Linear"):
        regard.experiments.prune(torch.nn.Linear(3, 3), [(0, 1)])
    with pytest.raises(UnsupportedError, match="no language-model or masked head"):
        regard.experiments.mean_loss(torch.nn.Linear(3, 3), [[1, 2, 3]])


def test_what_is_no_table_of_heads_is_refused():
    """With what would be one."""
    with pytest.raises(ArgumentError, match="Measures, a Survey or labels"):
        columns_of([torch.zeros(1)])


def test_effects_of_what_there_is_not_are_refused():
    with pytest.raises(ArgumentError, match="of must be one of heads, edges, positions, layers"):
        effects(load("gpt2", random=True), "abc", of="words")
