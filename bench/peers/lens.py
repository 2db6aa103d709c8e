"""Heads switched off one by one in TransformerLens, for bench/experiments.py: one line of JSON.

    python bench/peers/lens.py FOLDER THREADS < question.json

Runs in an environment that has transformer_lens 2.16.1 beside torch and transformers. FOLDER holds a model
of the Llama family as transformers reads it; the question has text, token and off, pairs (layer, head).
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import time
import types

wandb = types.ModuleType("wandb")  # TransformerLens imports it to train, which nobody does here
wandb.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
sys.modules["wandb"] = wandb

import torch  # noqa: E402
import transformers  # noqa: E402
from transformer_lens import HookedTransformer, HookedTransformerConfig  # noqa: E402
from transformer_lens.pretrained.weight_conversions import convert_llama_weights  # noqa: E402


def hooked(folder: str, n_token: int) -> HookedTransformer:
    """The model of a folder, as TransformerLens rewrites it."""
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    said = theirs.config
    config = HookedTransformerConfig(
        d_model=said.hidden_size, d_head=said.head_dim, n_heads=said.num_attention_heads, n_ctx=n_token,
        n_key_value_heads=said.num_key_value_heads, n_layers=said.num_hidden_layers, d_vocab=said.vocab_size,
        d_mlp=said.intermediate_size, act_fn="silu", eps=said.rms_norm_eps, normalization_type="RMS",
        positional_embedding_type="rotary", rotary_dim=said.head_dim, rotary_adjacent_pairs=False,
        rotary_base=int(said.rope_parameters["rope_theta"]), final_rms=True, gated_mlp=True,
        original_architecture="LlamaForCausalLM", default_prepend_bos=False,
    )  # fmt: skip
    model = HookedTransformer(config)
    model.load_state_dict(convert_llama_weights(theirs, config), strict=False)
    return model.eval()


@torch.no_grad()
def main() -> None:
    """Switch off the heads that are asked for, and say what that did and how long one took."""
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    asked = json.load(sys.stdin)
    text = torch.tensor([asked["text"]])
    model = hooked(folder, text.shape[1])

    def score(logits: torch.Tensor) -> float:
        return float(logits[0, -1].float().log_softmax(-1)[asked["token"]])

    before = score(model(text))
    effects, start = [], time.perf_counter()
    for layer, head in asked["off"]:

        def off(z: torch.Tensor, hook: object, head: int = head) -> torch.Tensor:
            z[:, :, head] = 0.0
            return z

        hooks = [(f"blocks.{layer}.attn.hook_z", off)]
        effects.append(score(model.run_with_hooks(text, fwd_hooks=hooks)) - before)
    each = (time.perf_counter() - start) / len(effects)
    print(json.dumps({"each": each, "effects": effects, "unchanged": before}))


main()
