"""Our experiments on a GPT-2 of random weights against TransformerLens on the same; one line of JSON."""

import importlib.machinery
import json
import sys
import tempfile
import types

wandb = types.ModuleType("wandb")  # TransformerLens imports it to train, which nobody does here
wandb.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
sys.modules["wandb"] = wandb

import torch  # noqa: E402
import transformers  # noqa: E402
from transformer_lens import HookedTransformer, HookedTransformerConfig, patching  # noqa: E402
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights  # noqa: E402

import regard  # noqa: E402
from regard.experiments import patch_effects  # noqa: E402
from regard.heads import composition, logit_attribution, logit_lens  # noqa: E402

CLEAN, CORRUPTED, ANSWER, OTHER = [5, 17, 3, 42, 8, 29], [5, 17, 30, 42, 8, 29], 7, 9


def models():
    """The same weights in both libraries, their attention far from flat."""
    torch.manual_seed(2)
    config = transformers.GPT2Config(vocab_size=61, n_embd=24, n_head=4, n_layer=3, n_positions=32,
                                     bos_token_id=1, eos_token_id=None)  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
            elif not name.endswith("ln_f.weight"):  # which TransformerLens takes to be folded into the scores
                parameter.add_(0.1 * torch.randn_like(parameter))
    said = HookedTransformerConfig(n_layers=3, d_model=24, n_ctx=32, d_head=6, n_heads=4, d_mlp=96,
                                   d_vocab=61, act_fn="gelu_new", normalization_type="LN",
                                   attention_dir="causal", default_prepend_bos=False)  # fmt: skip
    hooked, folded = HookedTransformer(said), HookedTransformer(said)
    hooked.load_state_dict(convert_gpt2_weights(theirs, said), strict=False)
    hooked.set_use_attn_result(True)
    folded.load_and_process_state_dict(convert_gpt2_weights(theirs, said), fold_ln=True,
                                       center_writing_weights=False, center_unembed=False,
                                       fold_value_biases=False)  # fmt: skip
    return theirs, hooked.eval(), folded.eval()


def main():
    model, hooked, folded = models()
    clean, corrupted = torch.tensor([CLEAN]), torch.tensor([CORRUPTED])
    with torch.no_grad():
        apart = {"logits": float((hooked(clean) - model(clean).logits).abs().max())}
        _, cache = hooked.run_with_cache(clean)

        def metric(logits):
            return logits[0, -1, ANSWER] - logits[0, -1, OTHER]

        ours = patch_effects(model, CLEAN, CORRUPTED, answer=ANSWER, against=OTHER)
        heads = patching.get_act_patch_attn_head_out_all_pos(hooked, corrupted, cache, metric)
        places = patching.get_act_patch_attn_out(hooked, corrupted, cache, metric)
        written = cache.logit_attrs(cache.stack_head_results(layer=-1, pos_slice=-1), tokens=ANSWER,
                                    incorrect_tokens=OTHER, pos_slice=-1, has_batch_dim=True)  # fmt: skip
    apart["heads"] = float((ours.heads + ours.corrupted - heads).abs().max())
    apart["positions"] = float((ours.positions + ours.corrupted - places).abs().max())
    direct = logit_attribution(model, clean, ANSWER, against=OTHER).heads
    apart["attribution"] = float((direct.flatten() - written.flatten()).abs().max())
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        own = regard.load(folder)
        seen = hooked.unembed(hooked.ln_final(cache.accumulated_resid(layer=-1, pos_slice=-1)))
        apart["lens"] = float((logit_lens(own, clean)[:, 0] - seen[:, 0]).abs().max())
        apart["lens, foreign"] = float((logit_lens(model, clean)[:, 0] - seen[:, 0]).abs().max())
        for which, scores in (("", composition(own)), (", foreign", composition(model))):
            for kind, table in (("Q", scores.q), ("K", scores.k), ("V", scores.v)):
                theirs = folded.all_composition_scores(kind).permute(2, 3, 0, 1).double()
                apart[f"composition {kind}{which}"] = float((table - theirs).abs().nan_to_num(0.0).max())
    apart["size"] = float(heads.abs().max())
    print(json.dumps(apart))


main()
