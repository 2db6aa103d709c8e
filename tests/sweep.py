"""Every model type of transformers, built tiny and traced: the table of docs/models.md.

    python tests/sweep.py                  every type, and docs/models.md written anew
    python tests/sweep.py bert llama ...   these types, printed

Each model runs as it is built and with eager attention, with and without padding. Its outputs traced and
untraced must be equal to the bit. Its weights are compared with what its eager mode returns
(`output_attentions`), and where it returns none with the softmax calls that a spy of this file saw. A softmax
that is not in the trace must be named by it.
"""

from __future__ import annotations

import copy
import json
import os
import re
import resource
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tiny_transformers import Built, CannotBuild, build, model_types
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from regard.errors import RegardError
from regard.tracing.take import trace
from regard.tracing.traces import Trace

SECONDS = 60  # of the processor, for one model
CLOSE = 1e-5
PAGE = Path(__file__).parents[1] / "docs" / "models.md"
# From worst to best: a type is what the worst of its runs is.
OUTCOMES = (
    "WRONG",
    "CHANGED",
    "failed",
    "unseen",
    "refused",
    "unverified",
    "as it ran",
    "equal",
    "no attention",
    "cannot be built",
)

_WORDS = {
    "WRONG": "silently wrong in what was seen",
    "CHANGED": "changed by the trace",
    "failed": "failed",
    "unseen": "with a softmax that nobody saw, unmarked",
    "refused": "refused although there is a softmax",
    "unverified": "marked",
    "as it ran": "equal to its own run, not to what eager mode returns",
    "equal": "equal",
    "no attention": "no attention",
    "cannot be built": "not built",
}


@dataclass(frozen=True)
class Run:
    """What one traced run of one model was."""

    outcome: str
    why: str = ""
    n_layer: int = 0
    n_compared: int = 0
    n_whole: int = 0  # layers that hold their weights, not queries and keys


class TooLong(BaseException):
    """No mere Exception, for those are what building tries and catches."""


class Spy(TorchFunctionMode):
    """Weights of every softmax and of every call of PyTorch's attention, by the definition, and where."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.names = {id(module): name for name, module in model.named_modules()}
        self.weights: list[torch.Tensor] = []
        self.places: list[str] = []  # the innermost module around each

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = str(getattr(func, "__name__", "")).partition(".")[0]
        if func is F.scaled_dot_product_attention:
            self._note(_definition(*args, **kwargs))
        elif name in ("softmax", "_softmax") and isinstance(out, torch.Tensor) and out.dim() > 2:
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            self._note(out.detach().movedim(dim, -1).clone())
        return out

    def _note(self, weights: torch.Tensor) -> None:
        if weights.shape[-1] < 2:
            return
        frame = sys._getframe(2)
        while frame.f_back is not None and id(frame.f_locals.get("self")) not in self.names:
            frame = frame.f_back
        self.weights.append(weights)
        self.places.append(self.names.get(id(frame.f_locals.get("self"))) or "attention")


def _definition(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Weights of scaled_dot_product_attention as its documentation defines them."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not(), -torch.inf
        )
    if attn_mask is not None:
        bool_mask = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if bool_mask else scores + attn_mask
    return scores.softmax(-1).nan_to_num(0.0)


def judge(model_type: str, seed: int = 0) -> dict[str, Run]:
    """Every run of one type by its name."""
    try:
        built = build(model_type, seed)
    except CannotBuild as error:
        return {"": Run("cannot be built", str(error)[:300])}
    eager = built
    with suppress(CannotBuild):
        eager = build(model_type, seed, "eager")
        eager.model.load_state_dict(built.model.state_dict())
    runs = {}
    for mode, tried in (("default", built), ("eager", eager)):
        for padded in (False, True):
            if built.padded is not None or not padded:
                run = judge_run(tried, eager.model, padded)
                if run.outcome == "as it ran":
                    run = _without_rounding(tried, eager, padded) or run
                runs[f"{mode}, padded" if padded else mode] = run
    return runs


def _without_rounding(built: Built, eager: Built, padded: bool) -> Run | None:
    """The same run in float64, if its weights are those of eager mode there: only rounding differed."""
    models = [copy.deepcopy(one.model).double() for one in (built, eager)]
    given = [
        one and {name: value.double() if value.is_floating_point() else value for name, value in one.items()}
        for one in (built.inputs, built.padded)
    ]
    with suppress(Exception):  # some have float32 written into them
        run = judge_run(Built(models[0], given[0] or {}, given[1]), models[1], padded)
        if run.outcome == "equal":
            return replace(run, why="; ".join(filter(None, [run.why, "in float64"])))
    return None


def judge_run(built: Built, eager: Any, padded: bool) -> Run:
    """One run of a model, compared with what `eager`, the same in eager mode, returns."""
    model, given = built.model, built.padded if padded else built.inputs
    assert given is not None
    with torch.no_grad():
        torch.manual_seed(0)
        plain = list(_tensors(model(**given)))
        torch.manual_seed(0)
        spy = Spy(model)
        with spy:
            model(**given)
    seen: list[torch.Tensor] = []
    handle = model.register_forward_hook(lambda module, args, out: seen.extend(_tensors(out)))
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = trace(model, dict(given))
    except RegardError as error:
        return Run("refused" if spy.weights else "no attention", str(error)[:300])
    except Exception as error:  # what a user would see as a crash of ours
        return Run("failed", f"{type(error).__name__}: {str(error)[:300]}")
    finally:
        handle.remove()
    whole = sum(not hasattr(layer, "rule") for layer in traced.layers)
    if len(plain) != len(seen) or not all(map(_same, plain, seen)):
        return Run("CHANGED", "the outputs of a traced and an untraced run differ", traced.n_layer)
    real = None if not padded else given["attention_mask"].bool()
    result = partial(Run, n_layer=traced.n_layer, n_whole=whole)
    if not traced.checks.passed:
        return result("unverified", str(traced.checks)[:300])
    marks = "; ".join(traced.marks.values())
    remark = marks[:300]
    if "as returned" in traced.marks:
        return result("unverified", remark)
    wanted = eager_attentions(eager, given)
    missing, unseen = _missing(traced, wanted, real), _missing(traced, spy.weights, real)
    result = partial(result, n_compared=len(wanted) + len(spy.weights))
    places = {spy.places[index]: text for index, text in unseen.items()}
    named = set(re.findall(r"[\w.]+", marks))
    others = str(traced.facts.get("other_softmax", "")).split(", ")
    silent = [
        f"{text} in {place}"
        for place, text in places.items()
        if place not in named and re.sub(r"\b\d+\b", "*", place) not in others
    ]
    if silent and missing and len(unseen) == len(spy.weights):
        return result("WRONG", "; ".join(missing.values())[:300])
    if silent:
        return result("unseen", f"nobody saw {'; '.join(silent)}"[:300])
    if named & set(places) and (missing or not wanted):
        return result("unverified", remark)
    if missing:
        return result("as it ran", f"not in the trace: {'; '.join(missing.values())}"[:200])
    return result("equal", remark)


def eager_attentions(model: Any, given: dict[str, Any]) -> list[torch.Tensor]:
    """The weights that the model itself returns; none where it returns none."""
    try:
        torch.manual_seed(0)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = model(**given, output_attentions=True)
    except Exception:  # it does not return any
        return []
    weights = []
    for name, value in out.items() if hasattr(out, "items") else ():
        if "attentions" in name and isinstance(value, list | tuple):
            weights += [item for item in value if isinstance(item, torch.Tensor) and item.dim() >= 3]
    return weights


def _missing(traced: Trace, wanted: list[torch.Tensor], real: torch.Tensor | None) -> dict[int, str]:
    """Which of the weights wanted are in no layer of the trace."""
    held = [layer.block(None, slice(0, layer.n_query), slice(0, layer.n_key)) for layer in traced.layers]
    missing = {}
    for index, weights in enumerate(wanted):
        gaps = [_gap(weights, layer, real) for layer in held]
        best = min(gaps, default=9.0)
        if best > CLOSE:
            missing[index] = f"{index} of {tuple(weights.shape)}: nearest {best:.1e}"
    return missing


def _gap(weights: torch.Tensor, layer: torch.Tensor, real: torch.Tensor | None) -> float:
    """How far two tables are apart; rows of padding are nobody's concern."""
    if weights.numel() != layer.numel():
        if (
            weights.shape[:-1].numel() == layer.shape[:-1].numel()
            and weights.shape[-1] == layer.shape[-1] + 1
        ):
            return _gap(weights[..., :-1], layer, real)  # a sink
        return 9.0
    if weights.shape == layer.shape:
        rows = torch.ones(layer.shape[0], layer.shape[2], dtype=torch.bool)
        if real is not None and real.shape == rows.shape:
            rows = real
        off = (weights - layer).abs().transpose(1, 2)[rows]
        return float(off.nan_to_num(9.0).max()) if off.numel() else 0.0
    if real is not None:
        return min(float((weights.reshape(layer.shape) - layer).abs().nan_to_num(9.0).median()),
                   float((weights.flatten().sort()[0] - layer.flatten().sort()[0]).abs().max()))  # fmt: skip
    return float((weights.flatten().sort()[0] - layer.flatten().sort()[0]).abs().nan_to_num(9.0).max())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.detach().clone()
    elif isinstance(value, dict) or hasattr(value, "items"):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and (
        torch.equal(one, other) or torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    )


def overall(runs: dict[str, Run]) -> str:
    return min((run.outcome for run in runs.values()), key=OUTCOMES.index)


def judged(model_type: str) -> dict[str, Run]:
    """`judge` with a limit of time; a router's hard choice that rounding turned around gets another seed."""

    def stop(*_: object) -> None:
        raise TooLong(f"longer than {SECONDS} s")

    signal.signal(signal.SIGPROF, stop)
    runs: dict[str, Run] = {}
    for seed in (0, 1, 2):
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            runs = judge(model_type, seed)
        except TooLong as error:
            return {"": Run("cannot be built", str(error))}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if overall(runs) != "WRONG":
            break
    return runs


def work(types: list[str]) -> None:
    """One process's part: a line of JSON for each type."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()
    for model_type in types:
        runs = judged(model_type)
        print(
            json.dumps({"type": model_type, "runs": {name: asdict(run) for name, run in runs.items()}}),
            flush=True,
        )


def sweep(types: list[str], size: int = 25) -> dict[str, dict[str, Run]]:
    """The runs of every type; a process for each part of the list, so that a crash costs one type only."""
    done: dict[str, dict[str, Run]] = {}
    left = list(types)
    while left:
        part, left = left[:size], left[size:]
        command = [sys.executable, __file__, "--work", *part]
        lines = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        for line in lines.splitlines():
            if line.startswith("{"):
                said = json.loads(line)
                done[said["type"]] = {name: Run(**run) for name, run in said["runs"].items()}
                _say(said["type"], done[said["type"]])
        crashed = [model_type for model_type in part if model_type not in done]
        if crashed:
            done[crashed[0]] = {"": Run("cannot be built", "its process ended")}
            left = crashed[1:] + left
    return done


def _say(model_type: str, runs: dict[str, Run]) -> None:
    worst, why = said(runs)
    print(f"{model_type:32} {worst}{f' ({why})' if why else ''}", flush=True)


def said(runs: dict[str, Run]) -> tuple[str, str]:
    """The outcome of a type, and what is to be said of it."""
    worst = overall(runs)
    return worst, next(
        (f"{name}: {run.why}" for name, run in runs.items() if run.outcome == worst and run.why), ""
    )


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2:])
        return
    types = sys.argv[1:]
    done = sweep(types or model_types())
    counts = Counter(overall(runs) for runs in done.values())
    print({name: counts[name] for name in OUTCOMES if counts[name]})
    if not types:
        PAGE.write_text(page({model_type: said(runs) for model_type, runs in done.items()}))


def page(done: dict[str, tuple[str, str]]) -> str:
    """docs/models.md: what a trace of each type is."""
    import transformers

    counts = Counter(outcome for outcome, _ in done.values())
    built = len(done) - counts["cannot be built"]
    lines = [
        "# Models of transformers that a trace holds",
        "",
        "Written by `python tests/sweep.py`, which builds every model type that transformers "
        f"{transformers.__version__} lists, tiny and from its config alone, with random weights widened so "
        "that attention is far from uniform. Each runs as built and with eager attention, with and without "
        "padding. Outputs of the traced and the untraced run must be equal to the bit, and every weight "
        "within 1e-5 of what the model returns in eager mode (`output_attentions`), or of what a spy on its "
        "softmax calls saw where it returns none. Where the two modes round so differently that more than "
        "1e-5 remains, they are compared in float64, and the remark says so.",
        "",
        f"Of {len(done)} types {built} can be built so: "
        + ", ".join(
            f"{counts[name]} {_WORDS[name]}" for name in OUTCOMES[:-1] if counts[name] or name == "WRONG"
        )
        + ".",
        "",
        "A type has the outcome of the worst of its runs. Remarks name the run and repeat what the trace "
        "says of itself: layers named alone are those in which no softmax attention was seen.",
        "",
        "| Model type | Outcome | Remarks |",
        "| --- | --- | --- |",
    ]
    for model_type, (outcome, why) in sorted(done.items()):
        if outcome != "cannot be built":
            remark = "" if outcome == "no attention" else why.replace("|", "/").replace("\n", " ")
            lines.append(f"| {model_type} | {_WORDS[outcome]} | {remark} |")
    unbuilt = sorted(name for name, (outcome, _) in done.items() if outcome == "cannot be built")
    lines += [
        "",
        "Not built, mostly parts of other models or for want of inputs: " + ", ".join(unbuilt) + ".",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
