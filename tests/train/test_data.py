"""Files to tokens to batches: bad lines, order, places, padding."""

import gzip

import numpy as np
import pytest
import torch

from regard.errors import ArgumentError, LoadError
from regard.train.batches import (
    IGNORED,
    Batches,
    BlockExamples,
    DataPosition,
    Example,
    PairExamples,
    bucketed,
    one_pass,
    padded,
)
from regard.train.corpus import open_corpus, prepare
from regard.train.data import BadLines, TokenFile, read_lines, read_pairs, write_tokens
from regard.train.settings import Settings
from regard.train.vocabulary import SPECIAL, train_tokenizer


def write_rows(folder, rows, vocab=101):
    def sized():
        for row in rows:
            assert not TokenFile.exists(folder)
            yield row, 2 * len(row)

    write_tokens(folder, sized(), BadLines(), vocab=vocab)
    return TokenFile(folder)


def test_bad_lines_are_counted_with_their_numbers(tmp_path):
    """Each kind of bad line is counted apart and named by its line; good ones come through."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"a\tb\nlonely\n\tempty\nc\td\r\n\xff\tx\nx\ty\tz\n e \t f \n")
    bad = BadLines()
    assert list(read_pairs([path], bad)) == [(1, "a", "b"), (4, "c", "d"), (7, "e", "f")]
    assert bad.counts == {"not two columns": 2, "empty side": 1, "not UTF-8": 1}
    assert bad.where["not two columns"] == ["pairs.tsv:2", "pairs.tsv:6"]
    assert "1 not UTF-8 (pairs.tsv:5)" in str(bad)


def test_two_aligned_files_are_pairs_plain_or_gzipped(tmp_path):
    """Line by line, from a plain file and a gzipped one."""
    left, right = tmp_path / "a.de", tmp_path / "a.en.gz"
    left.write_text("eins\n\ndrei\n")
    right.write_bytes(gzip.compress(b"one\ntwo\nthree\n"))
    bad = BadLines()
    assert list(read_pairs([left, right], bad)) == [(1, "eins", "one"), (3, "drei", "three")]
    assert bad.where == {"empty side": ["a.de:2"]}


def test_files_of_different_length_are_not_aligned(tmp_path):
    """The shorter file and its last line are named."""
    left, right = tmp_path / "a", tmp_path / "b"
    left.write_text("1\n2\n3\n")
    right.write_text("1\n2\n")
    with pytest.raises(LoadError, match="b ends after line 2"):
        list(read_pairs([left, right], BadLines()))


def test_a_truncated_gzip_is_an_error(tmp_path):
    """Half a file is not taken for a shorter one."""
    path = tmp_path / "a.gz"
    packed = gzip.compress(b"".join(b"line %d\n" % number for number in range(9973)))
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(LoadError, match="ended before the end"):
        list(read_lines([path], BadLines()))


def test_a_token_file_holds_what_was_written(tmp_path):
    """Rows, sizes and checksum come back from the disk, and only when all was written."""
    rows = [[3, 1, 4], [1], [5, 9, 2, 6, 5], [3, 5]]
    written = write_rows(tmp_path / "t", rows)
    found = TokenFile(tmp_path / "t")
    assert [found[index].tolist() for index in range(len(found))] == rows
    assert found.n_byte(1, 3) == 2 * 6
    assert found.crc == written.crc != write_rows(tmp_path / "u", [*rows[:-1], [3, 6]]).crc
    assert write_rows(tmp_path / "w", [[2**16]], vocab=2**17)[0].tolist() == [2**16]


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_a_tokenizer_gives_the_text_back(kind):
    """Encoding and decoding is the identity on texts of the words it knows."""
    texts = ["Ein Hund, zwei Katzen!", "zwei Hund(e)", "¿café — naïve?"]
    tokenizer = train_tokenizer(kind, texts, vocab=499, end=True)
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_vocabulary_too_small_says_what_is_needed():
    """Bytes and special tokens must fit."""
    with pytest.raises(ArgumentError, match="vocab is 200, too small"):
        train_tokenizer("bpe", ["a"], vocab=200)
    with pytest.raises(ArgumentError, match="the data are empty"):
        train_tokenizer("char", [])


def lengths(count, seed=0):
    return np.random.default_rng(seed).integers(1, 37, count).tolist()


def pairs_of(rows, start=1):
    return PairExamples(lambda index: (rows[2 * index], rows[2 * index + 1]), len(rows) // 2, start)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    """An epoch has several, also of little data."""
    monkeypatch.setattr("regard.train.batches.WINDOW", 61)


def batches_of(folder, count=503, batch_tokens=149, seed=3):
    rows = [[7 + index % 89] * length for index, length in enumerate(lengths(2 * count))]
    return Batches(pairs_of(write_rows(folder, rows)), batch_tokens, seed, pad=0)


def series(batches, place, count):
    found = []
    for _ in range(count):
        batch, place = batches.at(place)
        found.append(batch)
    return found, place


def test_batches_go_on_from_any_place(tmp_path):
    """The batches after a place are the same, whether the ones before it were made or not."""
    batches = batches_of(tmp_path / "t")
    whole, _ = series(batches, DataPosition(), 251)
    head, place = series(batches, DataPosition(), 97)
    rest, _ = series(batches_of(tmp_path / "u"), place, 251 - 97)
    for one, other in zip(whole, [*head, *rest], strict=True):
        assert torch.equal(one.source, other.source)
        assert torch.equal(one.labels, other.labels)


def test_an_epoch_holds_every_example_once(tmp_path):
    """Shuffling, windows and buckets lose nothing and repeat nothing, and epochs differ in order."""
    batches = batches_of(tmp_path / "t")
    place, seen = DataPosition(), [[], []]
    while (epoch := place.window // batches.n_window) < 2:
        batch, place = batches.at(place)
        for source, labels in zip(batch.source, batch.labels, strict=True):
            n_source, n_label = int((source != 0).sum()), int((labels != IGNORED).sum())
            seen[epoch].append((n_source, n_label, int(source[0])))
    sizes = lengths(2 * 503)
    wanted = sorted((sizes[2 * i], sizes[2 * i + 1], 7 + 2 * i % 89) for i in range(503))
    assert sorted(seen[0]) == sorted(seen[1]) == wanted
    assert seen[0] != seen[1]


def test_a_batch_has_no_more_tokens_than_asked_for(tmp_path):
    """Rows times the longest, padding included, stays within the limit."""
    for batch in series(batches_of(tmp_path / "t"), DataPosition(), 113)[0]:
        rows = batch.inputs.shape[0]
        assert rows * max(batch.source.shape[1], batch.inputs.shape[1]) <= 149


def test_buckets_waste_less_than_chance():
    """Sorted by length, a batch is hardly padded."""
    examples = [Example([1] * n, [1] * n, [1] * n) for n in lengths(701)]
    used = sum(len(each.inputs) for each in examples)
    area = sum(padded(group, 0).inputs.numel() for group in bucketed(examples, 211))
    assert used <= area < 1.1 * used


def test_the_parts_of_a_batch_are_the_batch(tmp_path):
    """Rows go to one process each; a process without a row gets one that does not count."""
    batch, _ = batches_of(tmp_path / "t").at(DataPosition())
    parts = [batch.part(rank, 3) for rank in range(3)]
    assert sum(part.n_label for part in parts) == batch.n_label
    assert sum(part.inputs.shape[0] for part in parts) == batch.inputs.shape[0]
    idle = batch.part(997, 1009)
    assert idle.inputs.shape[0] == 1
    assert idle.n_label == 0


def test_blocks_cover_the_text_and_ask_for_the_next_token():
    """Held-out blocks are the text in order, each label the token after its input."""
    tokens = np.arange(7 * 13 + 5)
    blocks = BlockExamples(tokens, 13, seed=0, moving=False)
    found = [blocks.get(0, index) for index in range(len(blocks))]
    assert np.concatenate([each.inputs for each in found]).tolist() == list(range(7 * 13))
    assert all((each.labels == each.inputs + 1).all() for each in found)
    moving = BlockExamples(tokens, 13, seed=0)
    assert {int(moving.get(epoch, 0).inputs[0]) for epoch in range(53)} == set(range(5))


def test_masked_blocks_ask_for_some_tokens_and_show_the_others():
    """Where nothing is asked, the input is the text; of what is asked, most is masked."""
    tokens = np.random.default_rng(0).integers(7, 97, 40 * 101 + 1)
    blocks = BlockExamples(tokens, 101, seed=5, mask=6, vocab=97, moving=False)
    asked = masked = same = 0
    for index in range(len(blocks)):
        example = blocks.get(0, index)
        text = tokens[index * 101 : (index + 1) * 101]
        chosen = example.labels != IGNORED
        assert (example.labels[chosen] == text[chosen]).all()
        assert (example.inputs[~chosen] == text[~chosen]).all()
        asked, masked = asked + chosen.sum(), masked + (example.inputs[chosen] == 6).sum()
        same += (example.inputs[chosen] == text[chosen]).sum()
    # Binomial with n about 640 draws: five standard deviations on either side.
    assert abs(asked / 4040 - 0.16) < 0.03
    assert abs(masked / asked - 0.8) < 0.08
    assert abs(same / asked - 0.1) < 0.07
    again, other = blocks.get(1, 3), blocks.get(1, 3)
    assert (again.inputs == other.inputs).all()
    assert (again.inputs != blocks.get(2, 3).inputs).any()


def test_a_text_too_short_for_one_block_is_an_error():
    """The tokens there are and those needed are named."""
    with pytest.raises(ArgumentError, match="the text has 11 tokens: at least 14"):
        BlockExamples(np.arange(11), 13, seed=0)


@pytest.mark.parametrize("task", ["dates", "reverse", "recall"])
def test_the_final_scores_are_of_examples_that_chose_no_model(tmp_path, task):
    """The finished model's loss and answers are of the same pairs, and validation has none of them."""
    settings = Settings.of(task)
    prepare(settings, tmp_path)
    corpus = open_corpus(settings, tmp_path)
    assert not set(corpus.valid.pairs) & set(corpus.test.pairs)
    for held_out in (corpus.valid, corpus.test):
        assert len(held_out.examples) == len(held_out.pairs)
        for index in (0, 7, len(held_out.pairs) - 1):
            example = held_out.examples.get(0, index)
            texts = tuple(map(corpus.tokenizer.decode, (list(example.source), example.labels.tolist())))
            assert texts == held_out.pairs[index]
    assert corpus.train.get(0, 5).labels.tolist() != corpus.train.get(1, 5).labels.tolist()


def test_a_task_too_small_is_scored_on_what_there_is(tmp_path):
    """Two words, one at a time: there is nothing that validation has not."""
    settings = Settings.of("copy", {"symbols": 2, "max_words": 1})
    prepare(settings, tmp_path)
    corpus = open_corpus(settings, tmp_path)
    assert set(corpus.valid.pairs) == set(corpus.test.pairs) == {("0", "0"), ("1", "1")}


def corpus_of(tmp_path, content, **more):
    path = tmp_path / "pairs.tsv"
    path.write_text(content)
    settings = Settings.of("translate", {"pairs": str(path), "tokenizer": "word", **more})
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    prepare(settings, folder)
    return open_corpus(settings, folder)


LINES = [f"w{index % 17} v{index % 23} u{index % 7}\tx{index % 13} y{index % 5}" for index in range(401)]


def test_a_repeated_line_is_on_one_side_of_the_split(tmp_path):
    """Held-out sources do not occur in training, though lines repeat; together they are all."""
    corpus = corpus_of(tmp_path, "\n".join(LINES * 2), valid_fraction=0.2)
    decode = corpus.tokenizer.decode
    trained = {decode(corpus.train.get(0, index).source.tolist()) for index in range(len(corpus.train))}
    held_out = {source for source, _ in corpus.valid.pairs}
    assert trained
    assert held_out
    assert not trained & held_out
    assert len(corpus.train) + len(corpus.valid.pairs) == 802


def test_over_long_lines_are_skipped_and_told_or_refused(tmp_path):
    """A line longer than max_length is bad; bad_lines decides what happens."""
    long = "a " * 40 + "\tb"
    corpus = corpus_of(tmp_path, "\n".join([*LINES, long, "no tab"]), max_length=31, valid_fraction=0.2)
    (note,) = corpus.notes
    assert "skipped 2 bad lines" in note
    assert "1 longer than 31 tokens (pairs.tsv:402)" in note
    assert "1 not two columns (pairs.tsv:403)" in note
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(LoadError, match="not two columns"):
        corpus_of(other, "\n".join([*LINES, "no tab"]), bad_lines="refuse", valid_fraction=0.2)
    assert not TokenFile.exists(other / "run" / "data" / "train")


def test_no_usable_line_is_an_error(tmp_path):
    """Data without a single good line stop the run with words."""
    with pytest.raises(ArgumentError, match="empty"):
        corpus_of(tmp_path, "no tab\n")


def test_the_end_of_a_text_is_held_out(tmp_path):
    """The last tenth of the tokens is for evaluation, in whole lines, and its bytes are counted."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {index} é\n" for index in range(1009)), encoding="utf-8")
    settings = Settings.of("lm", {"text": str(path), "context": 17})
    prepare(settings, tmp_path)
    corpus = open_corpus(settings, tmp_path)
    text = path.read_text(encoding="utf-8")
    n_train, n_valid = len(corpus.train.tokens), len(corpus.valid.examples.tokens)
    assert n_train + n_valid == len(text)
    assert 0.1 <= n_valid / len(text) < 0.11
    held_out = corpus.tokenizer.decode(corpus.valid.examples.tokens.tolist())
    assert text.endswith(held_out)
    assert held_out.startswith("line")
    assert corpus.valid.bytes_per_token == len(held_out.encode()) / len(held_out)


def test_an_evaluation_passes_over_each_example_once(tmp_path):
    """`one_pass` gives as many labels as the data hold."""
    rows = [[5] * length for length in lengths(2 * 101)]
    examples = pairs_of(write_rows(tmp_path / "t", rows), SPECIAL.index("<bos>"))
    assert sum(batch.n_label for batch in one_pass(examples, 97, 0)) == sum(len(row) for row in rows[1::2])
