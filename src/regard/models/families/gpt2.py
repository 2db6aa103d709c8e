"""GPT-2: a decoder; norms before; learned positions; everything has a bias. Radford et al. 2019."""

from __future__ import annotations

import math

from regard.models.families.family import Family, GGUFValues, Published, Said, Weight, language_head, refuse
from regard.models.transformer import TransformerConfig

_BLOCK = "decoder.blocks.{}"


class GPT2(Family):
    """GPT-2. Its checkpoints keep matrices as (in, out), and query, key and value as one."""

    name = "gpt2"
    what = "decoder: predicts the next token"
    architectures = {"gpt2": ("GPT2LMHeadModel", "GPT2Model")}
    keys = {
        "vocab_size": "vocab",
        "n_layer": "n_decoder_layer",
        "n_positions": "n_position",
        "n_embd": "block.model_dim",
        "n_head": "block.n_head",
        "n_inner": "block.ff_dim",
        "layer_norm_epsilon": "block.norm_eps",
        "activation_function": "block.activation",
        "tie_word_embeddings": "tied",
    }
    weights = {
        "token": Weight("wte", "token_embd"),
        "position": Weight("wpe", "position_embd"),
        "decoder.norm": Weight("ln_f", "output_norm"),
        "unembed": Weight("lm_head", "output"),
        f"{_BLOCK}.attention_norm": Weight("h.{}.ln_1", "blk.{}.attn_norm"),
        f"{_BLOCK}.attention.query": Weight("h.{}.attn.c_attn", "blk.{}.attn_qkv", transposed=True, part=0),
        f"{_BLOCK}.attention.key": Weight("h.{}.attn.c_attn", "blk.{}.attn_qkv", transposed=True, part=1),
        f"{_BLOCK}.attention.value": Weight("h.{}.attn.c_attn", "blk.{}.attn_qkv", transposed=True, part=2),
        f"{_BLOCK}.attention.out": Weight("h.{}.attn.c_proj", "blk.{}.attn_output", transposed=True),
        f"{_BLOCK}.ff_norm": Weight("h.{}.ln_2", "blk.{}.ffn_norm"),
        f"{_BLOCK}.ff.up": Weight("h.{}.mlp.c_fc", "blk.{}.ffn_up", transposed=True),
        f"{_BLOCK}.ff.down": Weight("h.{}.mlp.c_proj", "blk.{}.ffn_down", transposed=True),
    }
    prefixes = ("transformer.", "")
    ignored = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
    sizes = {"gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}}
    gguf = "gpt2"
    gguf_cut = "gpt-2"  # files older than that key do not say, and this model has but one tokenizer

    def config(self, said: Published) -> TransformerConfig:
        refuse(
            said, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
        )
        return self.filled(
            said,
            {
                "positions": "learned",
                "head": language_head(said),
                "tied": True,
                "block.ff_dim": 4 * said["n_embd"],
                "block.norm": "layer",
                "block.norm_first": True,
                "block.norm_eps": 1e-5,
                "block.activation": "gelu_new",
            },
        )

    def initial_std(self, name: str, config: TransformerConfig) -> float:
        if name.endswith(("out.weight", "down.weight")):
            return 0.02 / math.sqrt(2 * config.n_decoder_layer)  # Radford et al. 2019, 2.3
        return 0.02

    def gguf_config(self, file: GGUFValues) -> Said:
        return {
            "n_embd": file.count("embedding_length"),
            "n_inner": file.count("feed_forward_length"),
            "n_layer": file.count("block_count"),
            "n_head": file.count("attention.head_count"),
            "n_positions": file.count("context_length"),
            "layer_norm_epsilon": file.real("attention.layer_norm_epsilon"),
            "activation_function": "gelu_new",
        }
