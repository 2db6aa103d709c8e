"""Gemma 3: windows and rotary bases by layer, norms before and after, on queries and keys too; token vectors
scaled up. Gemma Team 2025. Gemma 2 (2024) has no norm on queries and keys but softcaps, and is read too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.models.families.family import (
    Family,
    GGUFValues,
    Published,
    Said,
    Weight,
    first,
    gguf_scaling,
    language_head,
    local_layers,
    published_layers,
    published_rope,
    refuse,
    rotary_scaling,
)
from regard.models.families.llama import BLOCK, LAYER, Llama
from regard.models.transformer import TransformerConfig


def _norm(name: str, gguf: str) -> Weight:
    return Weight(name, gguf, offset=1.0)  # files hold the gain less 1; GGUF's hold the gain


class Gemma3(Family):
    """Gemma 3's text models, and Gemma 2."""

    name = "gemma3"
    what = "decoder: predicts the next token"
    architectures = {
        "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextModel"),
        "gemma2": ("Gemma2ForCausalLM", "Gemma2Model"),
    }
    keys = {
        **{key: path for key, path in Llama.keys.items() if key not in ("hidden_act", "mlp_bias")},
        "hidden_activation": "block.activation",
        "attn_logit_softcapping": "block.softcap",
        "final_logit_softcapping": "head_softcap",
    }
    weights = {
        **{ours: where for ours, where in Llama.weights.items() if "norm" not in ours},
        "decoder.norm": _norm("norm", "output_norm"),
        f"{BLOCK}.attention_norm": _norm(f"{LAYER}.input_layernorm", "blk.{}.attn_norm"),
        f"{BLOCK}.attention_norm_after": _norm(
            f"{LAYER}.post_attention_layernorm", "blk.{}.post_attention_norm"
        ),
        f"{BLOCK}.ff_norm": _norm(f"{LAYER}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
        f"{BLOCK}.ff_norm_after": _norm(f"{LAYER}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
        f"{BLOCK}.attention.query_norm": _norm(f"{LAYER}.self_attn.q_norm", "blk.{}.attn_q_norm"),
        f"{BLOCK}.attention.key_norm": _norm(f"{LAYER}.self_attn.k_norm", "blk.{}.attn_k_norm"),
    }
    prefixes, ignored = Llama.prefixes, Llama.ignored
    around = ("bos", None)
    sizes = {
        "gemma3": {
            "vocab_size": 262_144,
            "num_hidden_layers": 18,
            "max_position_embeddings": 32_768,
            "hidden_size": 640,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 2048,
            "sliding_window": 512,
        }
    }
    gguf = "gemma3"

    def config(self, said: Published) -> TransformerConfig:
        older = said.get("model_type") == "gemma2"
        refuse(said, use_bidirectional_attention=False)
        if not older:
            refuse(said, attn_logit_softcapping=None)  # which transformers reads and does not apply
        n_layer, pattern = said["num_hidden_layers"], said.get("sliding_window_pattern", 2 if older else 6)
        usual = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(n_layer)]
        local = local_layers(first(said.get("layer_types"), usual))
        n_position = first(said.get("max_position_embeddings"), 8192 if older else 131_072)
        rope: Any = said.get("rope_parameters") or {}
        full = rope if older else rope.get("full_attention") or said.get("rope_scaling") or {}
        near = {} if older else rope.get("sliding_attention") or {}
        refuse(near, rope_type="default")
        base = first(full.get("rope_theta"), said.get("rope_theta"), 10_000.0 if older else 1_000_000.0)
        near_base = first(near.get("rope_theta"), said.get("rope_local_base_freq"), 10_000.0)
        caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} if older else {}
        window = first(said.get("sliding_window"), 4096) if local else None
        said = {**caps, **said, "sliding_window": window}
        return self.filled(
            said,
            {
                "positions": "rotary",
                "n_position": n_position,
                "rotary_base": base,
                "rotary_scaling": rotary_scaling(full, n_position),
                "local": local,
                "local_rotary_base": None if older or local is None else near_base,
                "head": language_head(said),
                "head_softcap": None,
                "embed_scale": said["hidden_size"] ** 0.5,
                "tied": True,
                "block.n_kv_head": 4,
                "block.qk_dim": 256,
                "block.v_dim": first(said.get("head_dim"), 256),
                "block.norm": "rms",
                "block.norm_first": True,
                "block.norm_after": True,
                "block.norm_eps": 1e-6,
                "block.activation": "gelu_pytorch_tanh",
                "block.gated": True,
                "block.attention_bias": False,
                "block.ff_bias": False,
                "block.scale": first(said.get("query_pre_attn_scalar"), 256) ** -0.5,
                "block.qk_norm": not older,
                "block.softcap": None,
                "block.window": None,
            },
        )

    def model_type(self, config: TransformerConfig) -> str:
        return "gemma3_text" if config.block.qk_norm else "gemma2"

    def more(self, config: TransformerConfig) -> Said:
        full = published_rope(config.rotary_base, config.rotary_scaling)
        near = published_rope(first(config.local_rotary_base, 10_000.0))
        both = {"full_attention": full, "sliding_attention": near}
        said = {
            "rope_parameters": both if config.block.qk_norm else full,
            "query_pre_attn_scalar": round(first(config.block.scale, 1.0) ** -2),
            "layer_types": published_layers(config),
        }
        if not config.block.qk_norm:  # Gemma 2's are on where nothing is said
            said |= {"attn_logit_softcapping": config.block.softcap}
            said |= {"final_logit_softcapping": config.head_softcap}
        return said

    def gguf_config(self, file: GGUFValues) -> Said:
        n_head, model_dim = file.count("attention.head_count"), file.count("embedding_length")
        n_layer, head_dim = file.count("block_count"), file.count("attention.key_length", 256)
        return {
            "hidden_size": model_dim,
            "intermediate_size": file.count("feed_forward_length"),
            "num_hidden_layers": n_layer,
            "num_attention_heads": n_head,
            "num_key_value_heads": file.count("attention.head_count_kv"),
            "head_dim": head_dim,
            # Not in the file: of the sizes there are, only the one of 62 layers has another.
            "query_pre_attn_scalar": model_dim // n_head if n_layer == 62 else head_dim,
            "max_position_embeddings": file.count("context_length"),
            "rms_norm_eps": file.real("attention.layer_norm_rms_epsilon"),
            "sliding_window": file.count("attention.sliding_window", 4096),
            "rope_theta": file.real("rope.freq_base", 1_000_000.0),
            "rope_scaling": gguf_scaling(file),
        }

    def from_gguf(self, where: Weight, tensor: Tensor, said: Published) -> Tensor:
        """A GGUF file's norms are the gain itself, Hugging Face's less by 1."""
        return tensor - where.offset if where.offset else tensor
