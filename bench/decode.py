"""Tokens per second of decoding, against transformers, CTranslate2 and llama.cpp, and against memory itself.

Every case continues the same number of cached tokens greedily, in turn, in one run, each in a process of its
own: in one process the threads of each library slow down the others. Peers that cannot be imported are left
out; they need no place in the project's own environment:

    pip install --no-deps --target peers ctranslate2 && PYTHONPATH=peers python bench/decode.py
    pip install --no-deps --target peers diskcache llama-cpp-python    # compiles llama.cpp: minutes

The cached keys and values are random numbers: what they hold does not change the time, and reading prompts
of thousands of tokens in every round would. Only llama.cpp and CTranslate2 read theirs, once.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from timing import (
    Child,
    Goal,
    PlainTable,
    RatioTable,
    Row,
    Timing,
    available_bytes,
    interleaved,
    parse_options,
    report,
)
from torch import Tensor, nn

from regard.attention.softmax import attend
from regard.decoding.loop import generate
from regard.files import hub
from regard.files.loading import Loaded, load, save
from regard.models.families import initialise
from regard.models.transformer import Transformer

N_NEW = 32  # tokens decoded in one call
REST = 0.5  # seconds: OpenMP's threads wait for work, at full speed, for 0.2 s
LONG = 4096  # cached tokens from which fewer rounds do
TEXT = Path(__file__).parent.parent / "LICENSE"
BANDWIDTH = "memory"  # the case that reads a large matrix once
TRANSFORMERS, STATIC = "transformers", "transformers, static cache"
CT2, CT2_INT8, LLAMA = "CTranslate2 float32", "CTranslate2 int8", "llama.cpp Q4_1"
OURS, OURS_HALF = "regard float32", "regard float16"


def there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


class Continued(nn.Module):
    """A model that has read `n_cached` tokens already: `begin` goes back to just after them."""

    def __init__(self, model: Transformer, n_cached: int, batch: int) -> None:
        super().__init__()
        self.model, self.n_cached = model, n_cached - 1  # the last one is fed by begin
        self.tokens = torch.arange(batch) + 5
        self.decoding = cast(Any, model.begin(self.tokens[:, None])[1])
        block = model.config.block
        dim = block.qk_dim or block.model_dim // block.n_head
        for layer in self.decoding.cache.layers:
            shape = batch, block.n_kv_head or block.n_head, self.n_cached - layer.length, dim
            layer.append(torch.randn(shape), torch.randn(shape))
        self.eval()

    def begin(self, prompt: Tensor, key_mask: Any = None, *, start_token: Any = None) -> tuple[Tensor, Any]:
        for layer in self.decoding.cache.layers:
            # Not `crop`, which keeps what others may still look at, and so copies. Nobody looks here.
            layer.length = layer._written = self.n_cached
        return self.decoding.next(self.tokens), self.decoding


def ours(
    folder: Path, weights: Literal["float32", "float16"], n_cached: int, batch: int, n_new: int
) -> Callable[[], object]:
    model = load(folder).transformer
    model.packed = weights
    continued = Continued(model, n_cached, batch)
    prompt = continued.tokens[:, None]
    return lambda: generate(continued, prompt, max_new=n_new, stop=())


def with_transformers(
    folder: Path, static: bool, n_cached: int, batch: int, n_new: int
) -> Callable[[], object]:
    """`generate` with a cache given to it, which it continues."""
    from transformers import AutoModelForCausalLM, DynamicCache, StaticCache
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    shape = batch, heads, n_cached - 1, config.hidden_size // config.num_attention_heads
    cache: Any = StaticCache(config=config, max_cache_len=n_cached + n_new) if static else DynamicCache()
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    ids = torch.full((batch, n_cached), 5)

    def run() -> object:
        if static:
            for layer in cache.layers:
                layer.cumulative_length.fill_(n_cached - 1)
        elif (extra := cache.get_seq_length() - (n_cached - 1)) > 0:
            cache.crop(-extra)
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            max_new_tokens=n_new,
            min_new_tokens=n_new,
            do_sample=False,
            pad_token_id=0,
        )

    return run


def with_ctranslate2(
    folder: Path, quantisation: str, n_cached: int, batch: int, n_new: int
) -> Callable[[], object]:
    """`generate_batch`, which keeps what it read of a static prompt."""
    import ctranslate2  # type: ignore[import-not-found, unused-ignore]  # a peer, not a dependency

    converted = folder.with_name(f"{folder.name}-{quantisation}")
    if not converted.exists():
        converter = ctranslate2.converters.TransformersConverter(str(folder))
        converter.convert(str(converted), quantization=None if quantisation == "float32" else quantisation)
    model = ctranslate2.Generator(
        str(converted), compute_type=quantisation, intra_threads=torch.get_num_threads(), inter_threads=1
    )
    token = json.loads((converted / "vocabulary.json").read_text(encoding="utf-8"))[5]
    prompt, start = [token] * (n_cached - 1), [[token]] * batch
    return lambda: model.generate_batch(
        start,
        static_prompt=prompt,
        cache_static_prompt=True,
        include_prompt_in_result=False,
        max_length=n_new,
        min_length=n_new,
        sampling_topk=1,
        end_token=[],
    )


def with_llama_cpp(path: Path, n_cached: int, n_new: int) -> Callable[[], object]:
    """Its Python binding's loop; the prompt that it has read stays in its cache."""
    from llama_cpp import Llama  # type: ignore[import-not-found, unused-ignore]  # a peer, too

    threads = torch.get_num_threads()
    model = Llama(
        str(path), n_ctx=n_cached + n_new + 8, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    prompt = [5] * n_cached

    def run() -> object:
        made = []
        for token in model.generate(prompt, temp=0.0, reset=True):
            made.append(token)
            if len(made) == n_new:
                return made
        raise RuntimeError("llama.cpp stopped early")

    return run


@dataclass(frozen=True, slots=True)
class Setting:
    """One model, batch size and length of cache."""

    name: str
    loaded: Loaded
    folder: Path
    batch: int
    n_cached: int
    n_new: int
    gguf: Path | None = None

    def cases(self) -> Iterator[tuple[str, Child]]:
        """Each in a process of its own."""
        sizes = self.n_cached, self.batch, self.n_new
        yield OURS, Child(ours, self.folder, "float32", *sizes)
        yield OURS_HALF, Child(ours, self.folder, "float16", *sizes)
        if there("transformers"):
            yield TRANSFORMERS, Child(with_transformers, self.folder, False, *sizes)
            yield STATIC, Child(with_transformers, self.folder, True, *sizes)
        if there("ctranslate2"):
            yield CT2, Child(with_ctranslate2, self.folder, "float32", *sizes)
            yield CT2_INT8, Child(with_ctranslate2, self.folder, "int8", *sizes)
        if there("llama_cpp") and self.gguf is not None and self.batch == 1:
            yield LLAMA, Child(with_llama_cpp, self.gguf, self.n_cached, self.n_new)

    def bytes_read(self, half: bool) -> int:
        """Bytes of weights and of cached keys and values that one step must read."""
        model = self.loaded.transformer
        assert model.decoder is not None
        matrices = sum(each.numel() for each in model.decoder.parameters() if each.dim() == 2)
        head = model.token.weight if model.unembed is None else model.unembed.weight
        return (matrices + head.numel()) * (2 if half else 4) + self.cached_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes of all keys and values."""
        config = self.loaded.transformer.config
        block = config.block
        dim = block.qk_dim or block.model_dim // block.n_head
        heads = 2 * self.batch * (block.n_kv_head or block.n_head)
        return int(4 * heads * self.n_cached * dim * config.n_decoder_layer)

    @property
    def label(self) -> str:
        """What a row is called."""
        return f"{self.name}, batch {self.batch}, {self.n_cached} cached"


def bandwidth_case(n_bytes: int) -> Callable[[], object]:
    matrix = torch.ones(n_bytes // 4 // 4096, 4096)
    vector = torch.ones(4096)
    return lambda: matrix @ vector


def measure(setting: Setting, rounds: int, n_bytes: int) -> tuple[list[Row], list[str]]:
    """The times of one step, and our tokens a second and share of what memory could give."""
    cases: dict[str, Child] = {}
    try:
        cases.update(setting.cases())
        cases[BANDWIDTH] = Child(bandwidth_case, n_bytes)
        timings = interleaved(cases, rounds, round_seconds=0.0, rest=REST)
    finally:
        for child in cases.values():
            child.close()
    bandwidth = n_bytes / timings.pop(BANDWIDTH).median
    steps = {
        name: Timing(tuple(second / setting.n_new for second in each.seconds), each.calls_per_round)
        for name, each in timings.items()
    }
    one = setting.batch == 1
    goals = [Goal(OURS, TRANSFORMERS, 1 / 2.5), Goal(OURS_HALF, TRANSFORMERS, 1 / 3)]
    if one:
        goals = [Goal(OURS, CT2, 1.0), Goal(OURS_HALF, CT2_INT8, 1.0), Goal(OURS_HALF, LLAMA, 1.2)]
    rows = [Row(setting.label, steps)]
    rows += [
        Row(f"{goal.case} / {goal.peer}", {name: steps[name] for name in (goal.case, goal.peer)}, goal)
        for goal in goals
        if goal.peer in steps
    ]
    line = [setting.label]
    for case in (OURS, OURS_HALF):
        seconds = steps[case].median
        share = setting.bytes_read(half=case == OURS_HALF) / seconds / bandwidth
        line.append(f"{setting.batch / seconds:.1f} ({100 * share:.0f}%)")
    line += [
        f"{setting.batch / steps[case].median:.1f}" if case in steps else "-"
        for case in (TRANSFORMERS, STATIC, CT2, CT2_INT8, LLAMA)
    ]
    return rows, [*line, f"{bandwidth / 1e9:.1f}"]


def grouped_attention(rounds: int, n_cached: int, batch: int) -> PlainTable:
    """The attention step alone, one key and value head against one for each query head."""
    n_head, dim = 12, 64
    q = torch.randn(batch, n_head, 1, dim)
    cases: dict[str, Callable[[], object]] = {}
    for name, n_kv_head in (("multi-head", n_head), ("multi-query", 1)):
        k, v = torch.randn(2, batch, n_kv_head, n_cached, dim)
        cases[name] = partial(attend, q, k, v)
    timings = interleaved(cases, rounds)
    ratio = timings["multi-head"].over(timings["multi-query"])
    return PlainTable(
        f"One query, {n_head} heads, {n_cached} cached tokens, batch {batch}",
        [
            ["multi-head", "multi-query", "measured ratio", "bytes' ratio"],
            [str(timings["multi-head"]), str(timings["multi-query"]), f"{ratio:.1f}", f"{n_head:.1f}"],
        ],
        "Multi-query reads 12 times fewer bytes; it is then the arithmetic that takes the time.",
    )


@torch.no_grad()
def perplexity(loaded: Loaded, n_token: int, weights: Literal["float32", "float16"]) -> float:
    """exp of the mean surprise at each token of a fixed text, decoded one by one."""
    assert loaded.tokenizer is not None
    ids = torch.tensor(loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:n_token])
    loaded.transformer.packed = weights
    scores, decoding = loaded.model.begin(ids[None, :1])
    surprise = 0.0
    for token in ids[1:]:
        surprise -= float(scores[0].log_softmax(-1)[token])
        scores = decoding.next(token[None])
    return math.exp(surprise / (len(ids) - 1))


def perplexities(name: str, loaded: Loaded, n_token: int) -> PlainTable:
    exact, rounded = perplexity(loaded, n_token, "float32"), perplexity(loaded, n_token, "float16")
    return PlainTable(
        f"Perplexity of {name} on the first {n_token} tokens of LICENSE, decoded one by one",
        [
            ["float32", "float16", "change"],
            [f"{exact:.3f}", f"{rounded:.3f}", f"{100 * (rounded / exact - 1):+.3f}% (goal within 1%)"],
        ],
    )


def of_shape(name: str, **changes: Any) -> Loaded:
    """A published shape with random weights, and a few changes: more positions, or fewer layers."""
    loaded = load(name, random=True)
    config = replace(loaded.transformer.config, **changes)
    return replace(loaded, model=initialise(Transformer(config), seed=0).eval())


def models(quick: bool, longest: int) -> list[tuple[str, Loaded, Path | None]]:
    """What is measured, with the file that llama.cpp reads; two layers where it is quick."""
    if quick:
        small = {"n_decoder_layer": 2}
        return [
            ("small GPT-2", of_shape("gpt2", **small), None),
            ("small SmolLM2", of_shape("smollm2", **small), None),
        ]
    real = load("smollm2")
    return [
        ("GPT-2", of_shape("gpt2", n_position=longest + 2 * N_NEW), None),
        ("SmolLM2", real, hub.get("smollm2")),
    ]


def main() -> None:
    options = parse_options(__doc__)
    lengths = [32] if options.quick else options.lengths((128, 1024, 4096))
    batches = (1, 2) if options.quick else (1, 8)
    n_new = 2 if options.quick else N_NEW
    n_bytes = 1 << 24 if options.quick else 1 << 29
    rows: list[Row] = []
    header = [
        "setting",
        f"{OURS} (of memory)",
        f"{OURS_HALF} (of memory)",
        TRANSFORMERS,
        STATIC,
        CT2,
        CT2_INT8,
    ]
    speeds = [[*header, LLAMA, "memory, GB/s"]]
    measured = models(options.quick, max(lengths))
    with tempfile.TemporaryDirectory() as temporary:
        for name, loaded, gguf in measured:
            folder = Path(temporary) / name
            save(loaded, folder)
            for batch in batches:
                for n_cached in lengths:
                    setting = Setting(name, loaded, folder, batch, n_cached, n_new, gguf)
                    # Seven processes, of which some hold the cache twice, and everybody's weights.
                    if 12 * setting.cached_bytes + (8 << 30) > available_bytes():
                        print(f"{setting.label}: left out, memory is short", file=sys.stderr, flush=True)
                        continue
                    rounds = max(3, options.rounds // 2) if n_cached >= LONG else options.rounds
                    new_rows, line = measure(setting, rounds, n_bytes)
                    print(*line, sep=" | ", file=sys.stderr, flush=True)  # a run takes long
                    rows += new_rows
                    speeds.append(line)
    tables: list[RatioTable | PlainTable] = [
        PlainTable(
            "Tokens a second, all sequences together",
            speeds,
            "In brackets: the bytes of weights and cache a step reads, over its time and over memory's speed "
            "as measured in the same rounds. Above 100%: part of them is still in the processor's cache.",
        ),
        RatioTable("Seconds a step", TRANSFORMERS if there("transformers") else OURS, rows),
        grouped_attention(options.rounds, 512 if options.quick else 8192, 2 if options.quick else 8),
        perplexities(*measured[-1][:2], 40 if options.quick else 1500),
    ]
    report("Decoding", tables, options)


if __name__ == "__main__":
    main()
