"""A sound is read, its positions are times, and the words are those that transformers writes."""

import wave

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from regard.errors import ArgumentError
from regard.files.tokenizer import TextTokenizer
from regard.heads.alignment import aligned_heads, monotonic_path
from regard.tracing.sounds import read_sound, read_wave, takes_sound, written_ids
from regard.tracing.take import trace
from regard.tracing.traces import Timeline, Trace

RATE = 16_000
# Words, then the end, the start, two languages, the tasks: in the order of Whisper's own vocabulary.
WORDS = [f"w{index}" for index in range(40)]
SPECIAL = "endoftext startoftranscript en zh translate transcribe notimestamps 0.00".split()


@pytest.fixture(scope="module")
def whisper():
    """A random Whisper of two layers and three heads, its extractor and a vocabulary like its own."""
    config = transformers.WhisperConfig(
        vocab_size=len(WORDS) + len(SPECIAL),
        num_mel_bins=80,
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=31,
        decoder_ffn_dim=37,
        max_source_positions=1500,
        max_target_positions=448,
        decoder_start_token_id=41,
        eos_token_id=40,
        pad_token_id=40,
        bos_token_id=40,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(3)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    names = [*WORDS, *(f"<|{name}|>" for name in SPECIAL)]
    backend = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="w0"))
    return model, transformers.WhisperFeatureExtractor(), TextTokenizer.of(backend)


@pytest.fixture(scope="module")
def tones():
    """Two seconds of two tones."""
    times = torch.arange(2 * RATE) / RATE
    return 0.3 * torch.sin(2 * torch.pi * 440 * times) + 0.2 * torch.sin(2 * torch.pi * 1000 * times)


def write_wave(path, samples, rate, width=2, n_channel=1):
    scale = 2 ** (8 * width - 1) - 1
    numbers = (samples.numpy() * scale).round() + (128 if width == 1 else 0)
    kind = {1: np.uint8, 2: "<i2", 4: "<i4"}[width]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(n_channel)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.repeat(numbers.astype(kind), n_channel).tobytes())
    return path


@pytest.mark.parametrize(("width", "n_channel"), [(1, 1), (2, 2), (4, 1)])
def test_a_wave_file_is_read_as_it_was_written(tones, tmp_path, width, n_channel):
    """8, 16 and 32 bits, one channel or two: the samples, up to the rounding of their width."""
    read = read_wave(write_wave(tmp_path / "a.wav", tones, RATE, width, n_channel), RATE)
    torch.testing.assert_close(read, tones, atol=1.5 / 2 ** (8 * width - 1), rtol=1e-5)


@pytest.mark.parametrize("stored", [8_000, 22_050, 44_100])
def test_another_sampling_rate_keeps_the_tone(tmp_path, stored):
    """A tone of 440 Hz stays one, in the same phase, whatever rate it was stored at."""
    # One second: whole periods, so that both ends meet. In float64, as 440 turns lose digits in float32.
    at = torch.arange(stored).double() / stored
    path = write_wave(tmp_path / "a.wav", 0.5 * torch.sin(2 * torch.pi * 440 * at), stored)
    wanted = 0.5 * torch.sin(2 * torch.pi * 440 * torch.arange(RATE).double() / RATE)
    torch.testing.assert_close(read_wave(path, RATE).double(), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("data", "said"), [(b"RIFF", "cannot be read as a WAV"), (b"ID3" * 99, "cannot be read as a WAV")]
)
def test_what_is_not_a_wave_file_is_refused(tmp_path, data, said):
    """A damaged file and an MP3 are named."""
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(ArgumentError, match=said):
        read_wave(tmp_path / "a.wav", RATE)


def test_a_sound_too_long_and_a_model_without_an_extractor_are_refused(whisper, tones):
    """Whisper hears thirty seconds at once."""
    model, extractor, _ = whisper
    with pytest.raises(ArgumentError, match=r"up to 30 seconds. Got 32\.0"):
        read_sound(model, tones.repeat(16), extractor)
    with pytest.raises(ArgumentError, match="feature extractor"):
        read_sound(model, tones, None)


def test_what_is_written_is_what_transformers_writes(whisper, tones):
    """Greedy decoding with the model's cache gives the ids of `generate`, words alone allowed."""
    model, extractor, tokenizer = whisper
    features = read_sound(model, tones, extractor)[0]["input_features"]
    ours = written_ids(model, features, None, tokenizer)[0].tolist()
    prompt = ours[:2]
    assert prompt == [41, 46]  # start, no timestamps: English alone
    ids, allowed = list(prompt), torch.full((48,), -torch.inf)
    allowed[:41] = 0
    for _ in range(len(ours) - 2):  # without a cache, from the start each time
        scores = model(input_features=features, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
        ids.append(int((scores + allowed).argmax()))
    assert ours == ids
    assert written_ids(model, features, "w3", tokenizer)[0, :2].tolist() == prompt


def test_the_trace_of_a_sound_has_times_and_the_weights_of_eager_attention(whisper, tones, tmp_path):
    """Cross-attention of every layer equals what transformers returns; the axis is time, also from a file."""
    model, extractor, tokenizer = whisper
    words = torch.tensor([[41, 46, 5, 7, 11, 2, 3]])
    features, timeline, _ = read_sound(model, tones, extractor)
    assert takes_sound(model)
    assert (timeline.seconds, timeline.n_position, timeline.n_sound) == (0.02, 1500, 100)
    assert timeline.names[100] == "2.00 s"
    found = trace(model, {**features, "decoder_input_ids": words}, tokenizer=tokenizer)
    model.set_attn_implementation("eager")
    eager = model(**features, decoder_input_ids=words, output_attentions=True)
    model.set_attn_implementation("sdpa")
    crossing = [index for index, layer in enumerate(found.layers) if layer.kind == "cross"]
    assert len(crossing) == 2
    for index, weights in zip(crossing, eager.cross_attentions, strict=True):
        for head in range(3):
            torch.testing.assert_close(found.weights(index, head), weights[0, head], atol=1e-6, rtol=1e-4)
    whole = trace(transformers_as_loaded(model, extractor, tokenizer), tones, target="w3 w5")
    assert whole.source_tokens[0][:3] == ("0.00 s", "0.02 s", "0.04 s")
    whole.save(tmp_path / "a.trace")
    again = Trace.load(tmp_path / "a.trace")
    assert isinstance(again.timeline, Timeline)
    torch.testing.assert_close(again.timeline.spectrogram, timeline.spectrogram)


def transformers_as_loaded(model, extractor, tokenizer):
    from regard.files.loading import Loaded, described
    from regard.models.foreign import Foreign

    whole = Foreign(model, extractor)
    return Loaded(whole, tokenizer, described(whole, "tiny whisper", "memory"))


def test_the_best_path_that_never_goes_back_by_hand():
    """Greedy would take 2 first and be stuck there: the path gives up a little to gain more."""
    weights = torch.tensor([[0.4, 0.0, 0.6], [0.0, 0.9, 0.1], [0.0, 0.2, 0.8]])
    assert monotonic_path(weights).tolist() == [0, 1, 2]
    brute = max(
        ((a, b, c) for a in range(3) for b in range(a, 3) for c in range(b, 3)),
        key=lambda path: sum(float(weights[row, col]) for row, col in enumerate(path)),
    )
    assert monotonic_path(weights).tolist() == list(brute)


def test_a_head_that_follows_the_source_is_first_and_above_chance():
    """Of a diagonal, a column and noise, the diagonal alone is an alignment."""
    torch.manual_seed(0)
    diagonal = torch.eye(13, 29).roll(3, 1) * 0.7 + 0.3 / 29
    column = torch.zeros(13, 29)
    column[:, 4] = 1
    noise = torch.rand(13, 29).softmax(-1)
    shaped = torch.stack([noise, diagonal, column])[None]
    found = Trace.from_weights([shaped], rows=[f"r{i}" for i in range(13)], cols=[f"c{i}" for i in range(29)])
    best, *others = aligned_heads(found)
    assert best.head == 1
    assert best.score > 1.5 * best.chance
    assert all(other.score <= other.chance * 1.3 for other in others)
    with pytest.raises(ArgumentError, match="no cross-attention"):
        aligned_heads(Trace.from_weights(torch.eye(2), rows=["a", "b"], cols=["a", "b"]))
