"""Messages: what is sent arrives, and bytes that are no message are refused."""

import contextlib

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from regard.checking.child.messages import CLASSES, Failure, Outcome, SeenShapes
from regard.checking.child.wire import DTYPES, Reader, WireError, encode


def test_a_tree_arrives_as_it_was_sent():
    """Structure, dtypes, shapes and every bit of the numbers survive, also of views and empty tensors."""
    tree = {
        "a": (torch.randn(3, 5).T, [None, True, -7, 2.5, "text"]),
        7: {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.0)},
        "nan": torch.tensor([float("nan"), float("-inf")]),
        "row": torch.randn(1, 5).expand(3, 5)[:, :1].T,
    }
    (got,) = Reader().feed(encode(tree))
    assert got["a"][1] == [None, True, -7, 2.5, "text"]
    assert isinstance(got["a"], tuple)
    torch.testing.assert_close(got["a"][0], tree["a"][0], rtol=0, atol=0)
    assert got[7]["empty"].shape == (0, 3)
    assert got[7]["scalar"].shape == ()
    torch.testing.assert_close(got["nan"], tree["nan"], equal_nan=True)
    torch.testing.assert_close(got["row"], tree["row"], rtol=0, atol=0)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_keeps_its_bits(name):
    """A tensor of each dtype comes back with the same dtype and bytes."""
    tensor = torch.arange(7).to(DTYPES[name])
    (got,) = Reader().feed(encode(tensor))
    assert got.dtype == tensor.dtype
    assert torch.equal(got, tensor)


def test_messages_are_cut_wherever_the_stream_is():
    """Bytes may arrive one by one and two messages at once."""
    data = encode([1]) + encode([2, torch.ones(3)])
    reader = Reader()
    first, second = (
        message for place in range(len(data)) for message in reader.feed(data[place : place + 1])
    )
    assert first == [1]
    assert second[0] == 2


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b'{"$tensor": ["float32", [3], 0]}',
        b'{"$tensor": ["float32", [3], "AAAAAA=="]}',
        b'{"$tensor": ["float32", [1], "AAAA"]}',
        b'{"$tensor": ["float32", [-3], "AAAAAA=="]}',
        b'{"$tensor": ["float32", [1], "no base 64"]}',
        b'{"$tensor": ["no such dtype", [1], "AAAAAA=="]}',
        b'{"$pickle": "x"}',
        b'{"a": 1, "b": 2}',
        b'{"SeenShapes": [0, 0, {"$dict": [["x", ["many"]]]}, null]}',
        b'{"SeenShapes": [0, 0]}',
        b'{"Statement": ["", "0", ""]}',
        b'{"NotData": [{"$tuple": []}]}',
    ],
)
def test_bytes_that_are_no_message_are_refused(header):
    """A child that writes into the pipe itself is found out, whatever it writes."""
    with pytest.raises(WireError):
        list(Reader().feed(header + b"\n"))


def test_a_message_arrives_with_its_fields():
    """Messages within messages too, and a tensor in the middle of them."""
    seen = SeenShapes(note=1, call=2, before={"x": [3, 5], "y": None}, after=[5])
    sent = Outcome(2, value=(torch.arange(3.0), "text"), error=Failure("error", "ValueError"), seen=[seen])
    (got,) = Reader().feed(encode(sent))
    assert torch.equal(got.value[0], sent.value[0])
    assert (got.run, got.error, got.seen) == (2, sent.error, [seen])
    assert set(CLASSES) >= {"Job", "Answer", "LoadReport", "Outcome"}


@hypothesis.given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_wire_error(data):
    """Random bytes are an incomplete message or a `WireError`."""
    with contextlib.suppress(WireError):
        list(Reader().feed(data))


def test_an_object_that_is_no_data_is_refused():
    """Only plain data is sent: there is no way to smuggle code."""
    with pytest.raises(WireError, match="function"):
        encode({"x": test_an_object_that_is_no_data_is_refused})
