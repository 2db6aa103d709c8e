"""What somebody else's model costs, counted: it runs on tensors without numbers, and its products are noted.

    counted = Counted(Path("folder"))             only config.json is read, no weights
    counted.cost("decode", batch=8, length=8191)

Operations and bytes are those of its own code, attention written out, so that hidden scores count. Its own
cache says what is held and read, so a layer with a window holds and reads that window.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from regard.costs.model import NOTHING, OPTIMISER, Cost, Phase, Row, check_lengths
from regard.errors import UnsupportedError
from regard.models.foreign import Foreign

_LISTS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")
_SOFTMAX = ("_softmax", "_softmax_backward_data")


class Counted:
    """A model of the transformers library without its weights, which says what its steps cost."""

    def __init__(self, folder: Path) -> None:
        """Build the model that a folder's config.json describes, on the meta device.

        Args:
            folder: The folder with config.json. Weights are not read and need not be there.

        Raises:
            UnsupportedError: If transformers is not installed, or cannot read the config or build the model.
        """
        self.folder = folder
        self.model = Foreign(_hollow(folder).eval())

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that can be counted: only a model that predicts the next token has a decoding step."""
        return ("train", "prefill", "decode") if self.model.lm_head == "language" else ("train", "prefill")

    def cost(self, phase: Phase, *, batch: int = 1, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """Count the cost of one training step, of a prefill, or of one decoding step.

        Args:
            phase: "train", "prefill" or "decode".
            batch: How many sequences are processed together.
            length: Tokens of each sequence; when decoding, tokens in the cache before the new one. The
                encoder of an encoder-decoder reads `length` tokens; its decoder starts with one token in
                prefill and reads `length` in training.
            dtype: The type of weights and activations.

        Returns:
            The cost, one row for each kind of module. Its formulas are plain numbers without symbols.

        Raises:
            ArgumentError: If there is no such phase, or `batch` or `length` is too small.
            UnsupportedError: If the model has no such step, or does not run on meta tensors.
        """
        check_lengths(phase, batch, length)
        if phase not in self.phases:
            raise UnsupportedError(f"{self.model.family} foretells no next token: it has no decoding step.")
        self.model.to(dtype)
        try:
            noted, held = self._run(phase, batch, length)
        # Anybody's code, on tensors without numbers: which of these it raises is its own affair.
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, UnsupportedError):
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UnsupportedError(
                f"{self.folder}: its cost is counted by running it on tensors without numbers, and it cannot "
                f"run so ({reason[:200]})."
            ) from error
        size = dtype.itemsize
        parameters = NOTHING + sum(weight.numel() for weight in self.model.parameters())
        rows = [
            Row(name, NOTHING + work, activations=NOTHING + noted.n_byte[name] // size, number_bytes=size)
            for name, work in noted.operations.items()
        ]
        if phase == "train":
            rows.append(Row("optimiser", weights=OPTIMISER * parameters, number_bytes=size))
        return Cost(phase, tuple(rows), {}, size, parameters, NOTHING + held // size)

    def _run(self, phase: Phase, batch: int, length: int) -> tuple[_Noted, int]:
        """The products of one step, and the bytes in the cache after it."""
        model, both = self.model.inner, self.model.kind == "encoder-decoder"
        tokens = torch.zeros(batch, length, dtype=torch.long, device="meta")
        answer = "decoder_input_ids" if both else "input_ids"
        more: dict[str, Any] = {"use_cache": True} if self.model.lm_head == "language" else {}
        if phase == "train":
            with torch.enable_grad(), ModuleTracker() as modules, _Noted(modules) as noted:
                model(**{"input_ids": tokens, answer: tokens}, **more)[0].float().sum().backward()
            model.zero_grad(set_to_none=True)
            return noted, 0
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            more["logits_to_keep"] = 1
        one = tokens.new_zeros(batch, 1)
        step: dict[str, Any] = {"input_ids": tokens} | ({answer: one} if both else {})
        with torch.no_grad():
            if phase == "decode":
                step = {answer: one, "past_key_values": None}
                if both:
                    more["encoder_outputs"] = model.get_encoder()(input_ids=tokens)  # type: ignore[operator]
                if length:
                    step["past_key_values"] = model(**{answer: tokens}, **more).get("past_key_values")
                    if step["past_key_values"] is None:
                        raise UnsupportedError(f"{self.model.family} has no cache that grows.")
            with ModuleTracker() as modules, _Noted(modules) as noted:
                out = model(**step, **more)
            return noted, _bytes_held(out.get("past_key_values"))


class _Noted(TorchDispatchMode):
    """Notes the operations and bytes of every product, softmax and embedding, by the module that asks."""

    def __init__(self, modules: ModuleTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.n_byte: Counter[str] = Counter()
        self._modules = modules
        self._chosen: dict[int, tuple[Tensor, int]] = {}  # rows of a weight (experts): the weight's own bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        kind = func.overloadpacket
        if kind.__name__ == "index" and isinstance(args[0], nn.Parameter):
            self._chosen[id(out)] = (out, args[0].nbytes)
        elif kind in flop_registry:
            # A product with weights has two matrices; attention's has a batch of them.
            batched = any(value.dim() > 2 for value in args if isinstance(value, Tensor))
            operations = flop_registry[kind](*args, **kwargs, out_val=out)
            self._note(self._name(" products" if batched else ""), operations, (args, out))
        elif kind.__name__ in _SOFTMAX:
            self._note(self._name(" softmax"), 0, (args, out))
        elif kind.__name__ == "embedding":
            self._note("embedding", 0, (out, out))
        return out

    def _note(self, name: str, operations: int, values: Any) -> None:
        """Bytes are those of all tensors; rows that several tokens chose are read once."""
        self.operations[name] += operations
        for tensor in tree_leaves(values):
            if isinstance(tensor, Tensor):
                _, most = self._chosen.get(id(tensor), (tensor, tensor.nbytes))
                self.n_byte[name] += min(tensor.nbytes, most)

    def _name(self, what: str) -> str:
        """The innermost module that is running, without the model's class and the layer's number."""
        innermost = max(self._modules.parents, key=lambda name: name.count("."))
        return re.sub(r"^.*\.\d+\.|^\w+\.", "", innermost) + what


def _bytes_held(cache: Any) -> int:
    """Of every tensor that a cache of transformers holds, layer by layer."""
    layers = [*getattr(cache, "layers", ())]
    for part in ("self_attention_cache", "cross_attention_cache"):
        layers += getattr(getattr(cache, part, None), "layers", ())
    values = [value for layer in layers for value in vars(layer).values()]
    return sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.dim() > 1)


def _hollow(folder: Path) -> nn.Module:
    """The model that a folder's config.json describes, with weights that have shapes and no numbers."""
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedError(
            f"{folder} holds a model that is none of ours: its cost is counted with the transformers "
            "library, which is not installed: pip install regard[hf]."
        ) from error
    reasons = []
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "batched_mm"  # whose shapes do not depend on the numbers
        named = [name for name in config.architectures or () if hasattr(transformers, name)]
        classes = [getattr(transformers, name) for name in (*named, *_LISTS)]
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedError(f"{folder}: transformers cannot read its config.json: {error}") from error
    for made in classes:
        build = made.from_config if "Auto" in made.__name__ else made._from_config
        try:
            with torch.device("meta"):
                model: nn.Module = build(config, attn_implementation="eager")
            return model
        except (ValueError, ImportError, AttributeError, RuntimeError, AssertionError) as error:
            reasons.append(f"{made.__name__}: {str(error).strip().partition(chr(10))[0][:200]}")
    raise UnsupportedError(f"{folder}: transformers cannot build it. " + "; ".join(reasons))
