"""BERT: an encoder; norms after; learned positions and token types; masked words. Devlin et al. 2019."""

from __future__ import annotations

from regard.models.families.family import Family, Published, Weight, refuse
from regard.models.transformer import TransformerConfig

_BLOCK, _LAYER = "encoder.blocks.{}", "encoder.layer.{}"
_SHAPE = {"vocab_size": 30522, "max_position_embeddings": 512, "num_attention_heads": 12}


class BERT(Family):
    """BERT, with its head for masked words or as a bare model with a pooler."""

    name = "bert"
    what = "encoder: every token sees every other"
    architectures = {"bert": ("BertForMaskedLM", "BertModel")}
    keys = {
        "vocab_size": "vocab",
        "num_hidden_layers": "n_encoder_layer",
        "max_position_embeddings": "n_position",
        "type_vocab_size": "n_token_type",
        "hidden_size": "block.model_dim",
        "num_attention_heads": "block.n_head",
        "intermediate_size": "block.ff_dim",
        "layer_norm_eps": "block.norm_eps",
        "hidden_act": "block.activation",
        "tie_word_embeddings": "tied",
    }
    weights = {
        "token": Weight("embeddings.word_embeddings"),
        "position": Weight("embeddings.position_embeddings"),
        "token_type": Weight("embeddings.token_type_embeddings"),
        "embed_norm": Weight("embeddings.LayerNorm"),
        f"{_BLOCK}.attention.query": Weight(f"{_LAYER}.attention.self.query"),
        f"{_BLOCK}.attention.key": Weight(f"{_LAYER}.attention.self.key"),
        f"{_BLOCK}.attention.value": Weight(f"{_LAYER}.attention.self.value"),
        f"{_BLOCK}.attention.out": Weight(f"{_LAYER}.attention.output.dense"),
        f"{_BLOCK}.attention_norm": Weight(f"{_LAYER}.attention.output.LayerNorm"),
        f"{_BLOCK}.ff.up": Weight(f"{_LAYER}.intermediate.dense"),
        f"{_BLOCK}.ff.down": Weight(f"{_LAYER}.output.dense"),
        f"{_BLOCK}.ff_norm": Weight(f"{_LAYER}.output.LayerNorm"),
        "pooler": Weight("pooler.dense"),
        "masked_head": Weight("cls.predictions"),
        "masked_head.dense": Weight("cls.predictions.transform.dense"),
        "masked_head.norm": Weight("cls.predictions.transform.LayerNorm"),
        "unembed": Weight("cls.predictions.decoder"),
    }
    prefixes = ("bert.", "")
    ignored = (
        "position_ids",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
        "pooler.dense.weight",
        "pooler.dense.bias",
    )
    renamed = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
    around = ("cls", "sep")
    sizes = {
        "bert": {
            **_SHAPE,
            "num_hidden_layers": 12,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "architectures": ["BertForMaskedLM"],
        },
        "minilm": {
            **_SHAPE,
            "num_hidden_layers": 6,
            "hidden_size": 384,
            "intermediate_size": 1536,
            "architectures": ["BertModel"],
        },
    }

    def config(self, said: Published) -> TransformerConfig:
        refuse(said, position_embedding_type="absolute", is_decoder=False)
        names = said.get("architectures") or ()
        masked = any("MaskedLM" in name or "PreTraining" in name for name in names)
        return self.filled(
            said,
            {
                "positions": "learned",
                "n_token_type": 2,
                "embed_norm": True,
                "final_norm": False,
                "head": "masked" if masked else "none",
                "tied": True,
                "pooler": not masked,
                "block.norm": "layer",
                "block.norm_first": False,
                "block.norm_eps": 1e-12,
                "block.activation": "gelu",
            },
        )
