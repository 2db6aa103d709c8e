"""GPT-2: a decoder; norms before; learned positions; everything has a bias. Radford et al. 2019."""

from regard.models.families.family import Family, HFConfig, Published, first


class GPT2(Family):
    """GPT-2. Its checkpoints keep matrices as (in, out), and query, key and value as one."""

    name = "gpt2"
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
    usual = {
        "n_inner": None,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    }
    fields = {"initial": "scaled"}
    refused = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    weights = {"token": "wte", "position": "wpe", "decoder.norm": "ln_f", "unembed": "lm_head"}
    block = {
        "attention_norm": "ln_1",
        **dict.fromkeys(("attention.query", "attention.key", "attention.value"), "attn.c_attn"),
        "attention.out": "attn.c_proj",
        "ff_norm": "ln_2",
        "ff.up": "mlp.c_fc",
        "ff.down": "mlp.c_proj",
    }
    layer = "h.{layer}"
    transposed = joined = True
    prefixes = ("transformer.", "")
    ignored = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
    sizes = {"gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}}
    gguf = "gpt2"
    gguf_cut = "gpt-2"  # files older than that key do not say, and this model has but one tokenizer

    def derived(self, said: Published) -> HFConfig:
        return {"block.ff_dim": first(said.get("n_inner"), 4 * said["n_embd"])}
