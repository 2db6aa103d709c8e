"""`trace(model, text)`: every attention weight of a forward pass, of our models and of anybody's.

    trace(regard.load("smollm2"), "some text")
    trace(transformers_model, {"input_ids": ids, "attention_mask": mask})
    trace(any_module, tensor)

The forward pass runs once, with the attention it would have run with; queries, keys and row sums are kept.
"""

import inspect
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.decoding.prompts import encoded
from regard.errors import ArgumentError, TraceError
from regard.files.loading import Loaded
from regard.files.tokenizer import readable
from regard.layers.layer_id import Kind
from regard.models.foreign import Foreign
from regard.models.model import Model
from regard.tracing.calls import AttentionCall, dense_bytes
from regard.tracing.images import grid_of, read_images, takes_images
from regard.tracing.layers import DenseLayerTrace
from regard.tracing.recorder import Recorder, expected, wanted_layers
from regard.tracing.sounds import is_sound, read_sound, takes_sound, written_ids
from regard.tracing.traces import Grid, Plain, Timeline, Trace, TraceChecks
from regard.tracing.watch import attention_layers, measure_layouts, uncompiled, watching

_NO_ANSWER = (
    "an encoder-decoder answers: give `target`, the answer, or use trace_generation to have it written by "
    "the model."
)
Layers = Sequence[int | str] | None  # by index or name; None: all
_DEAR = 2.0  # seconds: a model that takes as long is not run again to measure what are heads


@dataclass(frozen=True, slots=True, eq=False)
class ModelInput:
    """What a model is given, and what of it is known."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    ids: Int[Tensor, "batch position"] | None = None  # of the sequence that queries stand for
    source_ids: Int[Tensor, "batch source_position"] | None = None
    key_mask: Bool[Tensor, "batch _position"] | None = None  # False: padding; of a step, of all tokens so far
    source_key_mask: Bool[Tensor, "batch source_position"] | None = None
    text: tuple[str, ...] | None = None  # or the names of images
    grid: Grid | None = None  # of a vision model
    timeline: Timeline | None = None  # of a speech model


def trace(
    model: Loaded | nn.Module,
    text_or_tokens: Any,
    *,
    target: Any = None,
    layers: Layers = None,
    keep_v: bool = False,
    dtype: torch.dtype | None = None,
    to_disk: bool = False,
    tokenizer: Any = None,
) -> Trace:
    """Run `model` once and keep every attention weight, in memory that grows with the length only.

    Args:
        model: A loaded model, or any PyTorch model.
        text_or_tokens: A text, several texts, ids (a tensor or lists), or what a foreign model takes: a
            mapping of its arguments, or a tuple of them. For a vision model an image (a path, or one of
            Pillow's) or several.
        target: What an encoder-decoder answers.
        layers: Only these layers, by index or name; None: all.
        keep_v: Keep the values too.
        dtype: How queries and keys are kept; None: as computed.
        to_disk: Map the tensors of long texts from temporary files in place of memory.
        tokenizer: Turns text into ids and ids into labels, or is the image processor, where the model has
            none of its own.

    Returns:
        The trace: any weight, tile or overview of it can be asked for.

    Raises:
        TraceError: If no attention was seen, or what was seen cannot be explained.
        ArgumentError: If the input is empty, or an argument does not fit the model.

    Example:
        >>> from regard.files.loading import load
        >>> found = trace(load("bert", random=True), "abc", layers=[0])
        >>> found.tokens[0], found.weights(0, 0).shape
        (('<cls>', 'a', 'b', 'c', '<sep>'), torch.Size([5, 5]))
    """
    with torch.no_grad():
        kept = {"keep_v": keep_v, "dtype": dtype, "to_disk": to_disk}
        return observe(model, text_or_tokens, target, tokenizer, layers, logits="none", **kept)[0]


def observe(
    model: Any,
    given: Any,
    target: Any,
    tokenizer: Any,
    layers: Layers,
    *,
    logits: str = "all",
    **options: Any,
) -> tuple[Trace, Recorder, Any]:
    """Run a model once, of ours or anybody's: its trace, who recorded it, and its output.

    `options` are the recorder's. Warns where the trace's self-check fails.
    """
    module, whole, start = module_of(model), model, None
    if isinstance(model, Loaded):
        whole, start = model.model, model.start_token
        tokenizer = model.tokenizer if tokenizer is None else tokenizer
    if isinstance(module, Model):
        attention_layers(module)  # raises where one drops weights
        fed = our_input(module, given, target, tokenizer, start)
        _refuse_empty(fed)
        if not module.attention_names:
            raise TraceError("this model has no attention layer: there is nothing to trace.")
        wanted = None if layers is None else wanted_layers(module.attention_names, layers)
        both = fed.source_ids is not None
        expect = partial(
            expected, key_mask=fed.key_mask, source_key_mask=fed.source_key_mask, reads_source=both
        )
        recorder = Recorder(layers=wanted, expect=expect, **options)
        output = module(*fed.args, **fed.kwargs, logits=logits, record=recorder)
        return assemble(recorder, fed, tokenizer, facts_of(model)), recorder, output
    processor, images = getattr(whole, "processor", tokenizer), None
    if takes_images(module) and not isinstance(given, Tensor | Mapping | tuple):
        given, images = read_images(module, given, processor)
    timeline = None
    if takes_sound(module) and is_sound(given):
        given, timeline, images = read_sound(module, given, processor)
        given["decoder_input_ids"] = written_ids(module, given["input_features"], target, tokenizer)
        target = None
    fed = foreign_input(module, given, target, tokenizer)
    _refuse_empty(fed)
    recorder, answer = Recorder(layers=layers, **options), list[Tensor]()
    began = time.perf_counter()
    try:
        with _noting_answer(module, fed, answer), watching(module, recorder):
            output = module(*fed.args, **fed.kwargs)
    except ValueError as error:
        if not _both(module) or target is not None or "decoder" not in str(error):
            raise
        raise ArgumentError(f"{_NO_ANSWER} {type(module).__name__} says: {error}") from error
    if recorder.doubts and not recorder.keep_graph:
        recorder = _measured(module, fed, recorder, time.perf_counter() - began, layers, options)
    if answer:
        fed = replace(fed, ids=answer[0], source_ids=fed.ids, key_mask=None, source_key_mask=fed.key_mask)
    if not recorder.seen and not recorder.keep_graph:
        _take_returned(module, fed, recorder)
    if not recorder.seen:
        not_seen = recorder.remarks.get("not_seen")
        unfollowed = f" Not followed: {not_seen}." if not_seen else ""
        others = recorder.remarks.get("other_softmax")
        unfollowed += f" Softmaxes that met no values: in {others}." if others else ""
        if not unfollowed:
            unfollowed = " No softmax of it was seen."
        raise TraceError(
            f"{type(module).__name__} made no attention call that can be seen: traced are "
            "F.scaled_dot_product_attention, nn.MultiheadAttention, flex_attention, the attention registry "
            "of transformers, softmax over products of queries and keys that is multiplied with values, and "
            f"layers of this library.{unfollowed} A model without softmax attention has nothing to trace; "
            "weights it returns itself go into Trace.from_weights."
        )
    recorder.choose()
    if timeline is not None:
        fed = replace(fed, text=images, timeline=timeline)
    if fed.ids is None:
        fed = replace(fed, text=images, grid=grid_of(module, fed.args, fed.kwargs, processor))
    return assemble(recorder, fed, tokenizer, facts_of(model)), recorder, output


def _measured(
    module: nn.Module,
    fed: ModelInput,
    recorder: Recorder,
    seconds: float,
    layers: Layers,
    options: dict[str, Any],
) -> Recorder:
    """The recorder of a run in which it is known what are heads, as far as that can be measured."""
    if seconds > _DEAR:
        return recorder
    layouts = measure_layouts(module, fed.args, fed.kwargs)
    if not layouts:
        return recorder
    again = Recorder(layers=layers, **options)
    with torch.no_grad(), watching(module, again, layouts=layouts):
        module.forward(*fed.args, **fed.kwargs)  # not through hooks: for those who look on, the model has run
    return again


def assemble(recorder: Recorder, fed: ModelInput, tokenizer: Any, facts: Mapping[str, Plain]) -> Trace:
    """The trace of what a recorder has; warns where its self-check failed."""
    layers, checks = recorder.layers, TraceChecks(tuple(recorder.checks.values()))
    more: dict[str, Plain] = {"n_layer_traced": len(layers), **recorder.remarks}
    failed = [check.name for check in checks.layers if not check.passed]
    if failed:
        warnings.warn(f"the trace does not agree with the model it was taken from. {checks}.", stacklevel=4)
        more["unverified"] = f"the model's own output is not explained in {', '.join(failed)}"
    weights_kept = [layer.name for layer in layers if isinstance(layer, DenseLayerTrace)]
    if weights_kept:
        more["weights_kept"] = (
            f"{len(weights_kept)} layers hold the weights themselves, from {weights_kept[0]} on: "
            "their scores are not a product of queries and keys that could be followed"
        )
    sizes = [(dense_bytes(layer.rule, layer.n_query), layer.name) for layer in layers if layer.rule]
    if n_whole := sum(size > 0 for size, _ in sizes):
        largest, name = max(sizes)
        more["kept_whole"] = (
            f"{n_whole} masks or biases of query x key that nothing shorter says, "
            f"{largest / 2**20:.1f} MiB in {name}"
        )
    return Trace(
        layers=tuple(layers),
        tokens=labels(fed.ids, tokenizer) if fed.grid is None else (fed.grid.names,) * layers[0].n_batch,
        source_tokens=labels(fed.source_ids, tokenizer) if fed.timeline is None else (fed.timeline.names,),
        ids=fed.ids,
        key_mask=fed.key_mask,
        text=fed.text,
        facts={**facts, **more},
        checks=checks,
        grid=fed.grid,
        timeline=fed.timeline,
    )


def labels(ids: Tensor | None, tokenizer: Any) -> tuple[tuple[str, ...], ...]:
    """A string for each token, as the tokenizer spells it, or its number."""
    if ids is None:
        return ()
    rows = ids.tolist()
    if hasattr(tokenizer, "convert_ids_to_tokens"):  # one of transformers'
        byte_level = tokenizer.convert_tokens_to_string(["Ġ"]) == " "
        rows = [tokenizer.convert_ids_to_tokens(row) for row in rows]
        return tuple(tuple(readable(str(token), byte_level) for token in row) for row in rows)
    return tuple(tuple(map(str, row if tokenizer is None else tokenizer.tokens(row))) for row in rows)


def our_input(model: Model, given: Any, target: Any, tokenizer: Any, start_token: int | None) -> ModelInput:
    """What one of our models is given."""
    if isinstance(given, Mapping | tuple):
        raise ArgumentError(
            "a model of this library takes a text, several, or ids. "
            f"Got a {type(given).__name__}; a target goes into `target`."
        )
    device = next(model.parameters()).device
    read = encoded(given, tokenizer, device)
    mask = {"key_mask": read.key_mask}
    if model.kind != "encoder-decoder":
        if target is not None:
            raise ArgumentError("only an encoder-decoder has a target: give the whole text as one.")
        return ModelInput((read.ids,), mask, read.ids, key_mask=read.key_mask, text=read.texts)
    if target is None:
        raise ArgumentError(_NO_ANSWER)
    ids, key_mask = _answer(target, tokenizer, device, start_token)
    kwargs = {**mask, "target_key_mask": key_mask}
    return ModelInput((read.ids, ids), kwargs, ids, read.ids, key_mask, read.key_mask, read.texts)


def _answer(
    target: Any, tokenizer: Any, device: torch.device, start: int | None
) -> tuple[Tensor, Tensor | None]:
    """What a decoder reads, and where it is no padding: ids as they are, a text after the start token."""
    read = encoded(target, tokenizer, device)
    if start is None or isinstance(target, Tensor | np.ndarray):
        return read.ids, read.key_mask
    key_mask = None if read.key_mask is None else F.pad(read.key_mask, (1, 0), value=True)
    return F.pad(read.ids, (1, 0), value=start), key_mask


def foreign_input(model: nn.Module, given: Any, target: Any, tokenizer: Any) -> ModelInput:
    """What anybody's model is given, and its ids and padding where they can be told."""
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device

    def array(value: Any) -> Any:
        return torch.as_tensor(value, device=device) if isinstance(value, np.ndarray) else value

    text, given = None, array(given)
    if isinstance(given, str | list):
        read = encoded(given, tokenizer, device)
        text, given = read.texts, read.ids if read.texts is None else {"input_ids": read.ids}
        if text is not None and read.key_mask is not None:
            given["attention_mask"] = read.key_mask.long()
    if isinstance(given, Tensor) and target is not None:
        given = {"input_ids": given}
    if isinstance(given, Mapping) and target is None and _takes_one(model, given):
        return model_input(({name: array(value) for name, value in given.items()},), {})
    if isinstance(given, Mapping):
        kwargs = {name: array(value) for name, value in given.items()}
        if target is not None:
            start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
            kwargs["decoder_input_ids"] = _answer(target, tokenizer, device, start)[0]
        return model_input((), kwargs, text)
    if not isinstance(given, Tensor | tuple):
        raise ArgumentError(
            "give a foreign model a tensor, a mapping of its arguments, a tuple of them, or a text and a "
            f"tokenizer. Got {type(given).__name__}."
        )
    return model_input(given if isinstance(given, tuple) else (given,), {})


def model_input(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], text: tuple[str, ...] | None = None
) -> ModelInput:
    """A call of anybody's model, and what is known of it by the names of its arguments."""
    ids = token_ids(kwargs.get("input_ids", args[0] if args else None))
    answer = token_ids(kwargs.get("decoder_input_ids"))
    key_mask, answer_key_mask = (
        mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all()) else None
        for mask in (kwargs.get("attention_mask"), kwargs.get("decoder_attention_mask"))
    )
    if answer is None:
        return ModelInput(args, kwargs, ids, key_mask=key_mask, text=text)
    return ModelInput(args, kwargs, answer, ids, answer_key_mask, key_mask, text)


def _refuse_empty(fed: ModelInput) -> None:
    """Raise where a model is given no sequence, or sequences of no position."""
    for value in (*fed.args, *fed.kwargs.values()):
        if isinstance(value, Tensor) and value.dim() and not value.numel():
            raise ArgumentError(f"there is nothing to attend to: an input has shape {tuple(value.shape)}.")


def _takes_one(model: nn.Module, given: Mapping[str, Any]) -> bool:
    """Whether a model is given a mapping as its one argument, not by the names of its arguments."""
    if isinstance(model, torch.jit.ScriptModule):
        return False
    parameters = inspect.signature(model.forward).parameters.values()
    named = any(one.kind is one.VAR_KEYWORD for one in parameters)
    needed = [one for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    return not named and len(needed) == 1 and not {one.name for one in parameters} & set(given)


def _both(model: nn.Module) -> bool:
    """Whether anybody's model says that it has an encoder and a decoder."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _noting_answer(model: nn.Module, fed: ModelInput, notes: list[Tensor]) -> AbstractContextManager[Any]:
    """A block that notes what the decoder of an encoder-decoder reads, where it makes that up itself."""
    find = getattr(model, "get_decoder", None)
    decoder = find() if _both(model) and fed.source_ids is None and callable(find) else None
    if not isinstance(decoder, nn.Module) or decoder is model:
        return nullcontext()

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = model_input(args, kwargs).ids
        notes.extend([] if ids is None else [ids])

    return decoder.register_forward_pre_hook(note, with_kwargs=True)


def _take_returned(model: nn.Module, fed: ModelInput, recorder: Recorder) -> None:
    """Weights as the model itself returns them when it is asked to: the last resort, where none was seen."""
    if isinstance(model, torch.jit.ScriptModule):
        return  # it has no signature to ask
    forward = inspect.signature(model.forward).parameters
    if "output_attentions" not in (*forward, *dir(getattr(model, "config", None))):
        return
    try:
        with torch.no_grad(), uncompiled():
            # Not through hooks: for those who look on, the model has run.
            out = model.forward(*fed.args, **{**fed.kwargs, "output_attentions": True})
    except Exception:  # whatever it says: it does not return them
        return
    for name, layers in dict(out).items() if isinstance(out, Mapping) else ():
        if "attentions" in name and isinstance(layers, list | tuple):
            for index, weights in enumerate(layers):
                if isinstance(weights, Tensor) and weights.dim() == 4:
                    kind: Kind = "cross" if "cross" in name else "self"
                    recorder.add(AttentionCall(f"{name}.{index}", kind, None, None, weights=weights))
    if recorder.seen:
        recorder.remarks["as_returned"] = (
            "weights are as returned by the model: no call was seen, nothing checked"
        )


def module_of(model: Any) -> nn.Module:
    """The module itself, where torch.compile has wrapped it: compiled code calls nothing that can be seen."""
    module = model.model if isinstance(model, Loaded) else model
    module = module.inner if isinstance(module, Foreign) else module
    module = getattr(module, "_orig_mod", module)
    if not isinstance(module, nn.Module):
        raise ArgumentError(f"model must be a Loaded model or a torch.nn.Module. Got {type(model).__name__}.")
    return module


def token_ids(value: Any) -> Tensor | None:
    """A tensor of ids (batch, position), if it is one."""
    whole = isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point()
    return value if whole and value.dtype != torch.bool else None


def facts_of(model: Any) -> dict[str, Plain]:
    """What is known of a model, as plain values."""
    if isinstance(model, Loaded):
        said = asdict(model.facts)
        if not said["source"].startswith("random"):
            said["source"] = Path(said["source"]).name  # a trace may be passed on, its maker's folders not
        return {name: "; ".join(v) if isinstance(v, list | tuple) else v for name, v in said.items()}
    config = getattr(model, "config", None)
    facts: dict[str, Plain] = {
        "name": type(model).__name__,
        "n_parameter": sum(parameter.numel() for parameter in model.parameters()),
    }
    for ours, theirs in (("family", "model_type"), ("family", "family"), ("source", "name_or_path")):
        known = getattr(config, theirs, None)
        if isinstance(known, str) and known:
            facts[ours] = known
    return facts
