"""A tiny Llama written as a GGUF file by the gguf package, for tests that read or damage one."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

N_HEAD, N_KV_HEAD, HEAD_DIM, MODEL_DIM, FF_DIM, VOCAB = 3, 1, 32, 96, 160, 7


def interleaved(rows: np.ndarray, n_head: int) -> np.ndarray:
    """Rows as GGUF orders them, moved one by one: half-split pair (i, i + d/2) becomes (2i, 2i + 1)."""
    out = np.empty_like(rows)
    head_dim = rows.shape[0] // n_head
    for head in range(n_head):
        for i in range(head_dim // 2):
            out[head * head_dim + 2 * i] = rows[head * head_dim + i]
            out[head * head_dim + 2 * i + 1] = rows[head * head_dim + head_dim // 2 + i]
    return out


def llama_weights(n_layer: int = 2) -> dict[str, np.ndarray]:
    """A tiny Llama's tensors under Hugging Face's names."""
    rng = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, MODEL_DIM),
        "model.norm.weight": (MODEL_DIM,),
    }
    for layer in range(n_layer):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (MODEL_DIM,),
            f"{at}.self_attn.q_proj.weight": (N_HEAD * HEAD_DIM, MODEL_DIM),
            f"{at}.self_attn.k_proj.weight": (N_KV_HEAD * HEAD_DIM, MODEL_DIM),
            f"{at}.self_attn.v_proj.weight": (N_KV_HEAD * HEAD_DIM, MODEL_DIM),
            f"{at}.self_attn.o_proj.weight": (MODEL_DIM, N_HEAD * HEAD_DIM),
            f"{at}.post_attention_layernorm.weight": (MODEL_DIM,),
            f"{at}.mlp.gate_proj.weight": (FF_DIM, MODEL_DIM),
            f"{at}.mlp.up_proj.weight": (FF_DIM, MODEL_DIM),
            f"{at}.mlp.down_proj.weight": (MODEL_DIM, FF_DIM),
        }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    for theirs, ours in GGUF_NAMES.items():
        name = name.replace(theirs, ours)
    return name.replace("model.layers", "blk")


def write_llama(
    path: Path,
    kind: Kind = Kind.F32,
    extra: dict[str, np.ndarray] | None = None,
    n_layer: int = 2,
    **changes: object,
) -> Path:
    """A tiny Llama as a GGUF file; `changes` replace metadata, __ for a dot, None to leave one out."""
    writer = gguf.GGUFWriter(path, "llama")
    metadata: dict[str, object] = {
        "llama.block_count": n_layer,
        "llama.context_length": 29,
        "llama.embedding_length": MODEL_DIM,
        "llama.feed_forward_length": FF_DIM,
        "llama.attention.head_count": N_HEAD,
        "llama.attention.head_count_kv": N_KV_HEAD,
        "llama.rope.freq_base": 100000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "general.license": "mit",
    }
    for key, value in (metadata | {key.replace("__", "."): value for key, value in changes.items()}).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
    tensors = {gguf_name(name): (name, values) for name, values in llama_weights(n_layer).items()}
    tensors |= {name: (name, values) for name, values in (extra or {}).items()}
    for ours, (name, values) in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            values = interleaved(values, N_HEAD if "q_proj" in name else N_KV_HEAD)
        if values.dtype != np.float32:
            writer.add_tensor(ours, values)
            continue
        stored = Kind.F32 if values.ndim == 1 else kind
        writer.add_tensor(ours, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def damaged(data: bytes, seed: int, header_bytes: int) -> bytes:
    """`data` with bytes changed, cut out or doubled, mostly in its header, where it hurts."""
    rng = np.random.default_rng(seed)
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, min(header_bytes, len(out)) if rng.random() < 0.9 else len(out)))
        match int(rng.integers(0, 6)):
            case 0:
                out[at] = int(rng.integers(0, 256))
            case 1:
                out[at] ^= 1 << int(rng.integers(0, 8))
            case 2:
                out[at : at + 8] = bytes([255] * 8)
            case 3:
                out[at : at + 8] = int(rng.integers(0, 2**62)).to_bytes(8, "little")
            case 4:
                del out[at : at + int(rng.integers(1, 64))]
            case _:
                out[at:at] = out[at : at + int(rng.integers(1, 64))]
        if not out:
            break
    if rng.random() < 0.2:
        out = out[: int(rng.integers(0, len(out) + 1))]
    return bytes(out)
