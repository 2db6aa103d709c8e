"""The kernels behind the fused path: never called with what they cannot take, never query x key in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.attention import kernels, torch_ops
from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import UnsupportedError


def run_child(code, *arguments):
    """Run `code` in a process of its own, so that a crash or its memory is seen and not shared."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    # Freed blocks return to the system at once: the peak is what was held, not what malloc kept aside.
    env["MALLOC_MMAP_THRESHOLD_"] = "65536"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )


FUZZ = """
import random, sys
import torch
from attention_cases import GRAD_ERROR, LSE_ERROR, OUT_ERROR
from regard.attention.softmax import attend
from regard.errors import RegardError
from regard.attention.scores import DenseBias, ScoreRule
from regard.attention.visibility import Visibility

torch.set_num_threads(1)
seed = int(sys.argv[1])
choose = random.Random(seed)
torch.manual_seed(seed)
matched = refused = 0

def laid_out(*shape):
    t = torch.randn(shape)
    kind = choose.choice(["plain", "plain", "transposed", "strided", "expanded", "overlapping", "permuted"])
    if kind == "transposed":
        t = t.transpose(-1, -2).contiguous().transpose(-1, -2)
    elif kind == "strided":
        t = torch.randn(*shape[:-1], shape[-1] * 3)[..., ::3]
    elif kind == "expanded":
        axis = choose.randrange(4)
        t = t.narrow(axis, 0, min(1, shape[axis])).expand(shape)
    elif kind == "overlapping":
        t = torch.randn(sum(shape) + 7).as_strided(shape, (1, 1, 1, 1))
    elif kind == "permuted":
        order = choose.sample(range(4), 4)
        t = t.permute(order).contiguous().permute([order.index(i) for i in range(4)])
    return t

def size(*choices):
    return choose.choice(choices)

for turn in range(int(sys.argv[2])):
    batch, kv_head, group = size(0, 1, 2, 3), size(1, 2, 3), size(1, 1, 2, 5)
    query, key, dim = size(0, 1, 2, 7, 31, 65), size(0, 1, 3, 8, 33, 67, 521), size(1, 2, 3, 8, 17, 64, 65)
    shapes = [[batch, kv_head * group, query, dim], [batch, kv_head, key, dim], [batch, kv_head, key, dim]]
    if choose.random() < 0.2:
        shapes[choose.randrange(3)][choose.randrange(4)] = size(0, 1, 2, 4, 7)
    dtypes = [choose.choice(list(OUT_ERROR))] * 3
    if choose.random() < 0.05:
        dtypes[choose.randrange(3)] = size(torch.float32, torch.int64, torch.bfloat16)
    q, k, v = (laid_out(*s).to(d) for s, d in zip(shapes, dtypes))
    (batch, head, query, _), key = q.shape, k.shape[2]
    parts = {"causal": choose.random() < 0.5, "start": size(0, 0, 0, 3, 70)}
    part = size("", "", "window", "lengths", "keys", "dense", "rows")
    if part == "window":
        parts["window"] = size(1, 4, 40)
    elif part == "lengths":
        parts["lengths"] = torch.randint(0, key + 1, (size(batch, batch, 1),))
    elif part == "rows":
        parts["lengths"] = torch.randint(0, key + 1, (batch, query))
    elif part == "keys":
        parts["key_mask"] = torch.rand(key, size(batch, 1)).t() < 0.5
    elif part == "dense":
        parts["dense"] = (torch.rand(key, query, size(head, 1), size(batch, 1)) < 0.5).permute(3, 2, 1, 0)
    bias = None
    if choose.random() < 0.2:
        bias = DenseBias(torch.randn(key, size(query, 1), size(head, 1), size(batch, 1)).permute(3, 2, 1, 0))
    path = size(None, "fused", "fused", "tiled")
    print(turn, shapes, [t.stride() for t in (q, k, v)], dtypes, path, part, parts, flush=True)
    try:
        rule = ScoreRule(visible=Visibility(**parts), bias=bias)
        results = []
        for way in (path, "plain"):
            leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in (q, k, v)]
            out, lse = attend(*leaves, rule, path=way)
            finite = torch.where(torch.isfinite(lse), lse, 0.0)
            results.append((out, lse, *torch.autograd.grad(out.sum() + finite.sum(), leaves)))
    except RegardError as error:
        refused += 1
        continue
    errors = OUT_ERROR[q.dtype], LSE_ERROR[q.dtype], *[GRAD_ERROR[q.dtype]] * 3
    for got, want, error in zip(*results, errors):
        if not want.numel():
            assert got.shape == want.shape
            continue
        largest = max(1.0, want.nan_to_num(neginf=0).abs().max().item())
        largest = max(largest, v.abs().max().item()) if v.numel() else largest
        # Gradients of k and v add up over queries, and errors with them.
        error *= max(1.0, query ** 0.5)
        torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=error * largest)
    matched += 1
print("matched", matched, "refused", refused)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_no_shape_or_stride_crashes_the_process_or_returns_garbage(seed):
    """Random sizes (0 too), strides, dtypes and heads that do not fit: equal to plain, or our error."""
    done = run_child(FUZZ, seed, 200)
    last = done.stdout.splitlines()[-1:] or ["nothing"]
    assert done.returncode == 0, f"ended with {done.returncode} at {last}\n{done.stderr[-3000:]}"
    word, matched, _, refused = last[0].split()
    assert word == "matched"
    assert int(matched) + int(refused) == 200
    assert int(matched) > 100


MEMORY = """
import re, sys
from pathlib import Path
import torch
from regard.attention import shapes
from regard.attention.softmax import attend
from regard.attention.scores import ScoreRule, SlopeBias
from regard.attention.visibility import Visibility

torch.set_num_threads(1)
shapes.BLOCK = 1 << 18  # 1 MiB of float32: small beside a modest table
path, kind, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
rules = {
    "causal": lambda n: ScoreRule(visible=Visibility(causal=True)),
    "cache": lambda n: ScoreRule(visible=Visibility(causal=True, start=1)),
    "slope": lambda n: ScoreRule(bias=SlopeBias(torch.tensor([0.1]))),
    "lengths": lambda n: ScoreRule(visible=Visibility(lengths=torch.full((1, n), n // 2))),
    "softcap": lambda n: ScoreRule(softcap=5.0),
}

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def work(n):
    q, k, v = (torch.randn(1, 1, n, 16, requires_grad=True) for _ in range(3))
    out, lse = attend(q, k, v, rules[kind](n), path=path)
    (out.sum() + torch.where(lse > -1e9, lse, 0).sum()).backward()

work(701)  # what is loaded at first use does not count
before = peak()
work(n)
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("fused", "causal"), ("fused", "cache"), ("fused", "slope"), ("fused", "lengths"), ("tiled", "softcap")],
)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_no_table_of_query_by_key_is_ever_held(path, kind):
    """Forward and backward, through out and lse, at 6007 positions: below a quarter of one float32 table."""
    n = 6007
    done = run_child(MEMORY, path, kind, n)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) < n * n * 4 / 4


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_inputs_that_overlap_in_memory_are_read_as_they_look(which):
    """Sliding windows over one sequence, as `unfold` makes them: the kernel would write its output alike."""
    tensors = {name: torch.randn(2, 3, 11, 5) for name in "qkv"}
    tensors[which] = torch.randn(2, 3, 15).unfold(-1, 5, 1)
    assert tensors[which].stride() == (45, 15, 1, 1)
    results = []
    for inputs in (tensors.values(), [t.contiguous() for t in tensors.values()]):
        leaves = [t.detach().requires_grad_() for t in inputs]
        out, lse = attend(*leaves, path="fused")
        results.append((out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), leaves)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("missing", ["FLASH_CPU", "FLASH_CPU_BACKWARD"])
def test_without_the_operator_asking_for_it_says_why_not(missing, monkeypatch):
    """Whoever wants the fused path by name is told; test_torch_ops.py has who does not."""
    q, k, v = (torch.randn(1, 2, n, 3) for n in (5, 7, 7))
    rule = ScoreRule(visible=Visibility(causal=True))
    monkeypatch.setattr(torch_ops, missing, None)
    with pytest.raises(UnsupportedError, match="has no flash attention for CPU"):
        attend(q, k, v, rule, path="fused")


def names(arguments):
    return [argument.name for argument in arguments]


def test_the_operators_take_and_give_what_is_passed_by_position():
    """Names and order of arguments and results, as this PyTorch declares them."""
    forward, backward = torch_ops.FLASH_CPU._schema, torch_ops.FLASH_CPU_BACKWARD._schema
    assert names(forward.arguments) == "query key value dropout_p is_causal attn_mask scale".split()
    assert names(forward.returns) == ["output", "logsumexp"]
    assert names(backward.arguments) == (
        "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale".split()
    )
    forward, backward = torch_ops.FLASH_CUDA._schema, torch_ops.FLASH_CUDA_BACKWARD._schema
    assert names(forward.arguments) == ("query key value dropout_p is_causal return_debug_mask scale".split())
    assert names(forward.returns)[:6] == "output logsumexp cum_seq_q cum_seq_k max_q max_k".split()
    assert (
        names(backward.arguments)
        == (
            "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal "
            "philox_seed philox_offset scale"
        ).split()
    )


class Context:
    """What an autograd Function is given: autograd itself needs a GPU build to take tensors of a GPU."""

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def set_materialize_grads(self, value):
        self.materialize_grads = value


@pytest.mark.parametrize("causal", [True, False])
def test_the_call_on_cuda_fits_its_operators(causal):
    """No GPU is needed: fake tensors run the operators' own shape functions, forward and backward."""
    with FakeTensorMode(), torch.no_grad():
        q, k, v = (torch.empty(2, 3, 16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        assert kernels.why_not(q, k) is None
        context = Context()
        out, lse = kernels._Flash.forward(context, q, k, v, None, causal, 0.125)
        assert (out.shape, out.dtype, out.device) == (q.shape, q.dtype, q.device)
        assert (lse.shape, lse.dtype) == ((2, 3, 16), torch.float32)
        *grads, mask, flag, scale = kernels._Flash.backward(context, out, None)
        assert (mask, flag, scale) == (None, None, None)
        assert [(g.shape, g.dtype, g.device) for g in grads] == [(q.shape, q.dtype, q.device)] * 3


@pytest.mark.parametrize(
    ("shape", "key_shape", "dtype", "masked", "reason"),
    [
        ((1, 2, 8, 64), (1, 2, 8, 64), torch.float32, False, "only torch.bfloat16, torch.float16"),
        ((1, 2, 8, 64), (1, 2, 8, 64), torch.bfloat16, True, "takes no mask"),
        ((1, 2, 8, 64), (1, 1, 8, 64), torch.bfloat16, False, "equal heads and lengths"),
        ((1, 2, 8, 64), (1, 2, 9, 64), torch.bfloat16, False, "equal heads and lengths"),
        ((1, 2, 8, 60), (1, 2, 8, 60), torch.bfloat16, False, "multiple of 8"),
        ((1, 2, 8, 264), (1, 2, 8, 264), torch.float16, False, "up to 256"),
    ],
)
def test_what_the_cuda_kernel_cannot_do_has_a_reason(shape, key_shape, dtype, masked, reason):
    """The words a user reads who asked for fused on a GPU."""
    with FakeTensorMode():
        q, k = (torch.empty(s, device="cuda", dtype=dtype) for s in (shape, key_shape))
        assert reason in kernels.why_not(q, k, mask=masked)


def test_other_devices_and_dtypes_have_no_kernel():
    """A device without a kernel, and a dtype the CPU's does not take."""
    q = torch.empty(1, 1, 2, 3, device="meta")
    assert "no kernel for the device meta" in kernels.why_not(q, q)
    q = torch.empty(1, 1, 2, 3, dtype=torch.float8_e5m2)
    assert "does not take" in kernels.why_not(q, q)


@pytest.mark.parametrize("kernel", [*kernels.KERNELS, kernels.ONE_QUERY], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("ability", ["mask", "gradients", "bias_gradients", "additive", "softcap", "dropout"])
def test_a_kernel_refuses_exactly_what_its_row_says_it_cannot(kernel, ability):
    """The table is what is asked: nothing else decides."""
    with FakeTensorMode():
        shapes = ((1, 2, 1, 64), (1, 1, 1, 64), (1, 2, 3, 64))
        q, shared, longer = (
            torch.empty(shape, device=kernel.device, dtype=torch.bfloat16) for shape in shapes
        )
        assert kernel.why_not(q, q) is None
        assert (kernel.why_not(q, q, **{ability: True}) is None) == getattr(kernel, ability)
        assert (kernel.why_not(q, q, v_dim=32) is None) == kernel.wide_values
        assert (kernel.why_not(q, shared) is None) == kernel.grouped
        assert (kernel.why_not(q, longer) is None) == kernel.lengths_differ


def test_the_one_query_kernel_takes_one_query_and_gives_what_the_definition_gives():
    """As decoding calls it: grouped heads, a mask that is added."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, size, 5) for n, size in ((6, 1), (3, 7), (3, 7)))
    added = torch.zeros(2, 1, 1, 7).masked_fill(
        torch.arange(7) < torch.tensor([0, 3]).view(2, 1, 1, 1), -torch.inf
    )
    assert kernels.ONE_QUERY.why_not(q, k, v_dim=5, mask=True) is None
    assert "at most 1 queries" in kernels.ONE_QUERY.why_not(k.repeat(1, 2, 1, 1), k)
    out, lse = kernels.one_query(q, k, v, added, 0.3)
    scores = q @ k.repeat_interleave(2, 1).mT * 0.3 + added
    torch.testing.assert_close(lse, torch.logsumexp(scores, -1))
    torch.testing.assert_close(out, scores.softmax(-1) @ v.repeat_interleave(2, 1))
