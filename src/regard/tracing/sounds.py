"""Speech as models that listen take it: samples made into a spectrogram by the model's own extractor."""

import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.tracing.traces import Timeline

MOST_SECONDS = 30  # what Whisper hears at once
MOST_WRITTEN = 224  # tokens: half of Whisper's context, as its authors have it


def takes_sound(model: nn.Module) -> bool:
    """Return whether a spectrogram is what the model reads."""
    return getattr(model, "main_input_name", None) == "input_features"


def is_sound(given: Any) -> bool:
    """Return whether this is a file's path or samples, not features that are made of them already."""
    return not isinstance(given, Mapping | tuple | Tensor) or (isinstance(given, Tensor) and given.dim() == 1)


def read_sound(
    model: nn.Module, given: Any, extractor: Any
) -> tuple[dict[str, Tensor], Timeline, tuple[str, ...] | None]:
    """Return what a speech model takes of a sound, when its positions are, and the file's name.

    Args:
        model: A model of the transformers library that reads spectrograms.
        given: A WAV file's path, or samples at the model's sampling rate, ``(time,)``.
        extractor: The model's feature extractor.
    """
    if extractor is None or not hasattr(extractor, "sampling_rate"):
        raise ArgumentError(
            "a sound needs the feature extractor of its model, which preprocessor_config.json of its folder "
            "describes: give it as `tokenizer`, or give input_features as a mapping."
        )
    rate = int(extractor.sampling_rate)
    named = isinstance(given, str | Path)
    samples = read_wave(given, rate) if named else torch.as_tensor(given, dtype=torch.float32)
    seconds = len(samples) / rate
    if not 0 < seconds <= MOST_SECONDS:
        raise ArgumentError(f"a sound must last up to {MOST_SECONDS} seconds. Got {seconds:.1f}: cut it.")
    weight = next(model.parameters())
    features: Tensor = extractor(samples.numpy(), sampling_rate=rate, return_tensors="pt").input_features
    n_position = int(model.config.max_source_positions)  # type: ignore[union-attr, arg-type]
    step = features.shape[-1] * extractor.hop_length / rate / n_position
    timeline = Timeline(step, n_position, min(n_position, max(1, round(seconds / step))), features.float())
    names = (Path(given).name,) if named else None
    return {"input_features": features.to(weight.device, weight.dtype)}, timeline, names


def read_wave(path: str | Path, rate: int) -> Float[Tensor, "time"]:
    """Return the sound of a WAV file at this sampling rate, channels averaged, from -1 to 1."""
    try:
        with wave.open(str(path), "rb") as file:
            n_channel, width, stored = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise ArgumentError(f"{path} cannot be read as a WAV file of plain samples: {error}.") from error
    if width not in (1, 2, 4):
        raise ArgumentError(f"{path} has samples of {8 * width} bits: 8, 16 and 32 are read.")
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[width]
    samples = torch.frombuffer(bytearray(data), dtype=kind).float() if data else torch.zeros(0)
    if width == 1:  # the only one without a sign
        samples = samples - 128
    samples = samples.view(-1, n_channel).mean(1) / 2 ** (8 * width - 1)
    return samples if stored == rate or not len(samples) else _resampled(samples, stored, rate)


def _resampled(samples: Float[Tensor, "time"], stored: int, rate: int) -> Float[Tensor, "new_time"]:
    """Return a sound at another sampling rate: the frequencies that both rates can hold are kept."""
    n_new = max(1, round(len(samples) * rate / stored))
    spectrum = torch.fft.rfft(samples)
    n_kept = min(len(spectrum), n_new // 2 + 1)
    kept = torch.zeros(n_new // 2 + 1, dtype=spectrum.dtype)
    kept[:n_kept] = spectrum[:n_kept]
    heard: Tensor = torch.fft.irfft(kept, n_new) * (n_new / len(samples))
    return heard


def written_ids(
    model: nn.Module, features: Float[Tensor, "batch mel frame"], target: str | None, tokenizer: Any
) -> Int[Tensor, "batch position"]:
    """Return what Whisper's decoder reads: its prompt, then the words of `target` or those it hears itself.

    Args:
        model: Whisper, of the transformers library.
        features: The spectrogram.
        target: The words, or None: the likeliest token is written again and again until the end.
        tokenizer: The model's.
    """
    with torch.no_grad():
        memory = model.get_encoder()(features)  # type: ignore[operator]
        prompt = _prompt(model, memory, tokenizer)
        if target is not None:
            words = tokenizer.encode(f" {target.strip()}", add_special=False)
            return torch.tensor([[*prompt, *words]], device=features.device)
        ids, past = list(prompt), None
        end = int(model.config.eos_token_id)  # type: ignore[union-attr, arg-type]
        first_special = min(end, *prompt)
        new = list(prompt)
        for _ in range(MOST_WRITTEN):
            fed = torch.tensor([new], device=features.device)
            out = model(encoder_outputs=memory, decoder_input_ids=fed, past_key_values=past, use_cache=True)
            past, scores = out.past_key_values, out.logits[0, -1].clone()
            scores[first_special:end] = -torch.inf
            scores[end + 1 :] = -torch.inf  # words alone, no times and no tasks
            new = [int(scores.argmax())]
            if new[0] == end:
                break
            ids += new
    if len(ids) == len(prompt):
        raise ArgumentError("the model hears no word in this sound: give its words as target.")
    return torch.tensor([ids], device=features.device)


def _prompt(model: nn.Module, memory: Any, tokenizer: Any) -> list[int]:
    """Return what a transcript begins with: of a model of many languages, the likeliest one and the task."""
    find = tokenizer.backend.token_to_id
    start = int(model.config.decoder_start_token_id)  # type: ignore[union-attr, arg-type]
    silent, translate, task = (find(f"<|{name}|>") for name in ("notimestamps", "translate", "transcribe"))
    if silent is None:
        raise ArgumentError(
            "the tokenizer has no <|notimestamps|>: of the models that listen, Whisper is read."
        )
    english_only = int(model.config.vocab_size) < 51_865  # type: ignore[union-attr, arg-type]
    if english_only:
        return [start, silent]
    out = model(encoder_outputs=memory, decoder_input_ids=torch.tensor([[start]], device=memory[0].device))
    language = start + 1 + int(out.logits[0, -1, start + 1 : translate].argmax())
    return [start, language, task, silent]
