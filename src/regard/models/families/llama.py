"""Llama: a decoder; RMS norms before; rotary positions; grouped heads; gated feed-forward; no bias.

Touvron et al. 2023; Mistral (a window) and Qwen2 (biases of query, key and value) are of this type too.
"""

from __future__ import annotations

from torch import Tensor

from regard.errors import LoadError, UnsupportedError
from regard.models.families.family import (
    Family,
    GGUFValues,
    Published,
    Said,
    Weight,
    first,
    gguf_scaling,
    language_head,
    published_rope,
    refuse,
    rotary_scaling,
)
from regard.models.transformer import TransformerConfig

BLOCK, LAYER = "decoder.blocks.{}", "layers.{}"
_SMOLLM2 = {
    "vocab_size": 49152,
    "num_hidden_layers": 30,
    "max_position_embeddings": 8192,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}


class Llama(Family):
    """Llama, Mistral and Qwen2."""

    name = "llama"
    what = "decoder: predicts the next token"
    architectures = {
        "llama": ("LlamaForCausalLM", "LlamaModel"),
        "mistral": ("MistralForCausalLM", "MistralModel"),
        "qwen2": ("Qwen2ForCausalLM", "Qwen2Model"),
    }
    keys = {
        "vocab_size": "vocab",
        "num_hidden_layers": "n_decoder_layer",
        "max_position_embeddings": "n_position",
        "hidden_size": "block.model_dim",
        "num_attention_heads": "block.n_head",
        "num_key_value_heads": "block.n_kv_head",
        "head_dim": "block.qk_dim",
        "intermediate_size": "block.ff_dim",
        "rms_norm_eps": "block.norm_eps",
        "hidden_act": "block.activation",
        "attention_bias": "block.attention_bias",
        "mlp_bias": "block.ff_bias",
        "sliding_window": "block.window",
        "tie_word_embeddings": "tied",
    }
    weights = {
        "token": Weight("embed_tokens", "token_embd"),
        "decoder.norm": Weight("norm", "output_norm"),
        "unembed": Weight("lm_head", "output"),
        f"{BLOCK}.attention_norm": Weight(f"{LAYER}.input_layernorm", "blk.{}.attn_norm"),
        f"{BLOCK}.attention.query": Weight(f"{LAYER}.self_attn.q_proj", "blk.{}.attn_q"),
        f"{BLOCK}.attention.key": Weight(f"{LAYER}.self_attn.k_proj", "blk.{}.attn_k"),
        f"{BLOCK}.attention.value": Weight(f"{LAYER}.self_attn.v_proj", "blk.{}.attn_v"),
        f"{BLOCK}.attention.out": Weight(f"{LAYER}.self_attn.o_proj", "blk.{}.attn_output"),
        f"{BLOCK}.ff_norm": Weight(f"{LAYER}.post_attention_layernorm", "blk.{}.ffn_norm"),
        f"{BLOCK}.ff.gate": Weight(f"{LAYER}.mlp.gate_proj", "blk.{}.ffn_gate"),
        f"{BLOCK}.ff.up": Weight(f"{LAYER}.mlp.up_proj", "blk.{}.ffn_up"),
        f"{BLOCK}.ff.down": Weight(f"{LAYER}.mlp.down_proj", "blk.{}.ffn_down"),
    }
    prefixes = ("model.", "")
    ignored = ("rotary_emb.inv_freq", "lm_head.weight")
    sizes = {"llama": _SMOLLM2, "smollm2": _SMOLLM2}
    gguf = "llama"

    def config(self, said: Published) -> TransformerConfig:
        refuse(said, partial_rotary_factor=1.0)
        qwen = said.get("model_type") == "qwen2"
        if qwen:
            window, n_layer = said.get("sliding_window"), said["num_hidden_layers"]
            # Its lower layers, as many as this says, see everything.
            full = said.get("max_window_layers", 28) if said.get("use_sliding_window") else n_layer
            if full >= n_layer:
                window = None
            elif full > 0 and window is not None:
                raise UnsupportedError(
                    f"max_window_layers={full} of {n_layer} in config.json is not supported: a window here "
                    "is of all layers or of none."
                )
            said = {**said, "attention_bias": True, "sliding_window": window}
        rope = said.get("rope_parameters") or said.get("rope_scaling") or {}
        n_position = first(said.get("max_position_embeddings"), 2048)
        return self.filled(
            said,
            {
                "positions": "rotary",
                "n_position": n_position,
                "rotary_base": first(rope.get("rope_theta"), said.get("rope_theta"), 10_000.0),
                "rotary_scaling": rotary_scaling(rope, n_position),
                "head": language_head(said),
                "tied": False,
                "block.n_kv_head": said["num_attention_heads"],
                "block.qk_dim": None,
                "block.v_dim": said.get("head_dim"),
                "block.norm": "rms",
                "block.norm_first": True,
                "block.norm_eps": 1e-6,
                "block.activation": "silu",
                "block.gated": True,
                "block.attention_bias": False,
                "block.out_bias": False if qwen else None,
                "block.ff_bias": False,
                "block.window": None,
            },
        )

    def model_type(self, config: TransformerConfig) -> str:
        if config.block.attention_bias and config.block.out_bias is False:
            return "qwen2"
        return "llama" if config.block.window is None else "mistral"

    def more(self, config: TransformerConfig) -> Said:
        return {
            "rope_theta": config.rotary_base,
            "rope_parameters": published_rope(config.rotary_base, config.rotary_scaling),
            "use_sliding_window": config.block.window is not None,
            "max_window_layers": 0,
        }

    def gguf_config(self, file: GGUFValues) -> Said:
        n_head, model_dim = file.count("attention.head_count"), file.count("embedding_length")
        head_dim = file.count("attention.key_length", model_dim // n_head)
        rotary_dim = file.count("rope.dimension_count", head_dim)
        if rotary_dim != head_dim:
            raise LoadError(
                f"it rotates {rotary_dim} of {head_dim} numbers of a head: Llama-type models rotate all."
            )
        return {
            "hidden_size": model_dim,
            "intermediate_size": file.count("feed_forward_length"),
            "num_hidden_layers": file.count("block_count"),
            "num_attention_heads": n_head,
            "num_key_value_heads": file.count("attention.head_count_kv", n_head),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": file.count("context_length"),
            "rms_norm_eps": file.real("attention.layer_norm_rms_epsilon"),
            "rope_theta": file.real("rope.freq_base", 10_000.0),
            "rope_scaling": gguf_scaling(file),
            "attention_bias": file.has("blk.0.attn_q.bias"),
            "mlp_bias": file.has("blk.0.ffn_up.bias"),
        }

    def from_gguf(self, where: Weight, tensor: Tensor, said: Published) -> Tensor:
        """A rotary pair is rows 2i and 2i + 1 of a head in a GGUF file, and rows i and i + d/2 in HF's."""
        if where.gguf not in ("blk.{}.attn_q", "blk.{}.attn_k"):
            return tensor
        n_head = said["num_attention_heads" if where.gguf.endswith("q") else "num_key_value_heads"]
        if tensor.shape[0] % (2 * n_head):
            raise LoadError(
                f"{where.gguf} has {tensor.shape[0]} rows, which do not split into pairs in {n_head} heads."
            )
        pairs = tensor.view(n_head, tensor.shape[0] // n_head // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)
