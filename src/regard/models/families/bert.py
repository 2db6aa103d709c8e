"""BERT: an encoder; norms after; learned positions and token types; masked words. Devlin et al. 2019."""

from regard.models.families.family import COMMON_KEYS, Family, HFConfig, Published

_SHAPE = {"vocab_size": 30522, "max_position_embeddings": 512, "num_attention_heads": 12}
_BERT = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072}
_MINILM = {"num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}


class BERT(Family):
    """BERT, with its head for masked words or as a bare model with a pooler."""

    name = "bert"
    what = "encoder: every token sees every other"
    architectures = {"bert": ("BertForMaskedLM", "BertModel")}
    keys = {
        **COMMON_KEYS,
        "num_hidden_layers": "n_encoder_layer",
        "type_vocab_size": "n_token_type",
        "layer_norm_eps": "block.norm_eps",
    }
    usual = {
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "tie_word_embeddings": True,
    }
    fields = {"embed_norm": True, "final_norm": False, "block.norm_first": False}
    refused = {"position_embedding_type": "absolute", "is_decoder": False}
    weights = {
        "token": "embeddings.word_embeddings",
        "position": "embeddings.position_embeddings",
        "token_type": "embeddings.token_type_embeddings",
        "embed_norm": "embeddings.LayerNorm",
        "pooler": "pooler.dense",
        "masked_head": "cls.predictions",
        "masked_head.dense": "cls.predictions.transform.dense",
        "masked_head.norm": "cls.predictions.transform.LayerNorm",
        "unembed": "cls.predictions.decoder",
    }
    block = {
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "ff.up": "intermediate.dense",
        "ff.down": "output.dense",
        "ff_norm": "output.LayerNorm",
    }
    layer = "encoder.layer.{layer}"
    prefixes = ("bert.", "")
    ignored = (
        "position_ids",
        *(
            f"{copy}.{kind}"
            for copy in ("cls.predictions.decoder", "cls.seq_relationship", "pooler.dense")
            for kind in ("weight", "bias")
        ),
    )
    renamed = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
    around = ("cls", "sep")
    sizes = {
        "bert": {**_SHAPE, **_BERT, "architectures": ["BertForMaskedLM"]},
        "minilm": {**_SHAPE, **_MINILM, "architectures": ["BertModel"]},
    }

    def derived(self, said: Published) -> HFConfig:
        names = said.get("architectures") or ()
        masked = any("MaskedLM" in name or "PreTraining" in name for name in names)
        return {"lm_head": "masked" if masked else "none", "pooler": not masked}
