"""Relations: CoNLL-U as it is written, words from pieces as Clark et al. join them, against offsets."""

import pytest
import torch

from regard.files.loading import load
from regard.heads.relations import (
    pieces_of_words,
    read_conllu,
    score_pairs,
    score_relations,
    word_attention,
)
from regard.tracing.traces import Trace

TREE = """# sent_id = 1
# text = I don't like the old "vámonos" song.
1	I	I	PRON	PRP	_	4	nsubj	_	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	VBP	_	4	aux	_	_
3	n't	not	PART	RB	_	4	advmod	_	_
4	like	like	VERB	VB	_	0	root	_	_
5	the	the	DET	DT	_	9	det	_	_
6	old	old	ADJ	JJ	_	9	amod	_	_
7	"	"	PUNCT	``	_	9	punct	_	SpaceAfter=No
8-9	vámonos	_	_	_	_	_	_	_	SpaceAfter=No
8	vamos	ir	VERB	VB	_	9	compound	_	_
9	nos	nosotros	PRON	PRP	_	11	nmod:poss	_	_
10	"	"	PUNCT	''	_	9	punct	_	_
10.1	implied	imply	VERB	VBN	_	_	_	_	_
11	song	song	NOUN	NN	_	4	obj	_	SpaceAfter=No
12	.	.	PUNCT	.	_	4	punct	_	_

# sent_id = 2
1	Rain	rain	NOUN	NN	_	2	nsubj	_	_
2	fell	fall	VERB	VBD	_	0	root	_	SpaceAfter=No
3	.	.	PUNCT	.	_	2	punct	_	_
"""


@pytest.fixture
def treebank(tmp_path):
    path = tmp_path / "tree.conllu"
    path.write_text(TREE, encoding="utf-8")
    return path


def test_words_stand_where_the_text_has_them(treebank):
    """Split forms give each word its part, fused ones the whole; what is not written is no word."""
    first, second = read_conllu(treebank)
    spelled = [first.text[word.start : word.end] for word in first.words]
    assert spelled == ["I", "do", "n't", "like", "the", "old", '"', "vámonos", "vámonos", '"', "song", "."]
    assert [word.form for word in first.words][7:9] == ["vamos", "nos"]
    assert second.text == "Rain fell."
    assert len(read_conllu(treebank, most=1)) == 1


def test_pairs_go_from_dependents_to_heads_or_back(treebank):
    """A relation takes in its subtypes; the root depends on nobody."""
    first, second = read_conllu(treebank)
    assert first.pairs("nsubj") == [(0, 3)]
    assert first.pairs("nmod") == first.pairs("nmod:poss") == [(8, 10)]
    assert first.pairs("obj", from_head=True) == [(3, 10)]
    assert second.pairs("root") == []


def test_attention_between_words_sums_over_keys_and_averages_over_queries():
    """Worked by hand: words of one, two and one pieces, with a special token before them."""
    weights = torch.tensor(
        [[0.4, 0.3, 0.2, 0.1, 0.0], [0.1, 0.2, 0.3, 0.4, 0.0], [0.5, 0.1, 0.1, 0.2, 0.1],
         [0.0, 0.0, 0.6, 0.0, 0.4], [0.2, 0.2, 0.2, 0.2, 0.2]]
    )  # fmt: skip
    layer = Trace.from_weights(weights).layers[0]
    found = word_attention(layer, [[1], [2, 3], [4]])[0]
    expected = torch.tensor([[0.2, 0.7, 0.0], [0.05, 0.45, 0.25], [0.2, 0.4, 0.2]])
    torch.testing.assert_close(found, expected)


def test_pieces_are_found_by_where_they_stand():
    """Word pieces, byte-level tokens with their space, and special tokens without a place."""
    spans = [(0, 1), (2, 9), (9, 10)]
    offsets = [(0, 0), (0, 1), (2, 5), (5, 9), (9, 10), (0, 0)]
    assert pieces_of_words(spans, offsets) == [[1], [2, 3], [4]]


@pytest.mark.parametrize("name", ["minilm", "bert", "gpt2"])
def test_every_word_of_a_sentence_has_pieces(name, treebank):
    """Whatever the tokenizer, joined pieces spell the words."""
    loaded = load(name, random=name != "minilm")
    (sentence, _) = read_conllu(treebank)
    offsets = loaded.tokenizer.offsets(sentence.text)
    pieces = pieces_of_words([(word.start, word.end) for word in sentence.words], offsets)
    for word, own in zip(sentence.words, pieces, strict=True):
        covered = sentence.text[min(offsets[i][0] for i in own) : max(offsets[i][1] for i in own)]
        assert sentence.text[word.start : word.end] in covered
        assert all(offsets[i][0] < word.end and word.start < offsets[i][1] for i in own)


def test_accuracy_and_baseline_are_counted_by_hand(monkeypatch):
    """Of three pairs the head gets two, the best offset (two back) two, and self-attention is left out."""
    weights = torch.tensor([
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [0.3, 0.7, 0.0, 0.0, 0.0],
        [0.4, 0.2, 0.4, 0.0, 0.0],
        [0.1, 0.5, 0.3, 0.1, 0.0],
        [0.1, 0.1, 0.1, 0.6, 0.1],
    ])  # fmt: skip
    monkeypatch.setattr("regard.heads.relations.trace", lambda *_: Trace.from_weights(weights))
    spans = [(i, i + 1) for i in range(5)]
    score = score_pairs(load("gpt2", random=True), [("abcde", spans, [(2, 0), (3, 1), (4, 0), (0, 3)])])
    assert score.n_pair == 4  # nothing says that these weights are causal
    assert (float(score.accuracy), score.baseline, score.offset) == (0.5, 0.5, -2)
    assert score.best == (0, 0)


def test_a_causal_model_is_scored_on_pairs_that_look_back(treebank):
    """Pairs whose second word comes later are left out, for heads and baseline alike."""
    loaded = load("gpt2", random=True)
    sentences = read_conllu(treebank)
    back = score_relations(loaded, sentences, ["nsubj", "obj"], from_head=True)
    assert (back["nsubj"].n_pair, back["obj"].n_pair) == (2, 0)
    assert score_relations(loaded, sentences, ["obj"])["obj"].n_pair == 1


def test_pairs_of_ones_own_are_scored_as_a_treebank_is(treebank):
    """(text, spans, pairs) gives what the relation gives."""
    loaded = load("bert", random=True)
    sentences = read_conllu(treebank)
    ours = [(s.text, [(w.start, w.end) for w in s.words], s.pairs("nsubj")) for s in sentences]
    mine, theirs = score_pairs(loaded, ours), score_relations(loaded, sentences, ["nsubj"])["nsubj"]
    assert torch.equal(mine.accuracy, theirs.accuracy)
    assert (mine.n_pair, mine.baseline) == (2, 0.5)
