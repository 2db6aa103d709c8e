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
from regard.experiments import PredictionTarget, RowEngine, effects, patch_effects, path_effects  # noqa: E402
from regard.experiments.explain import direct_effects  # noqa: E402
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


def frozen_hooks(cache, after, feed_forward):
    """Hooks that keep all heads of later layers, and the feed-forward layers, as in a cache."""

    def keep(value, hook):
        return cache[hook.name]

    hooks = [(f"blocks.{layer}.attn.hook_z", keep) for layer in range(after + 1, 3)]
    return hooks + [(f"blocks.{layer}.hook_mlp_out", keep) for layer in range(after, 3)] * feed_forward


def sent(layer, head, new):
    """A hook that puts another output in the place of one head's."""

    def put(z, hook):
        z[:, :, head] = new
        return z

    return (f"blocks.{layer}.attn.hook_z", put)


def path_in_lens(hooked, clean, cache, other, metric, sender, receiver, side, feed_forward):
    """The score with one head's other output seen by one side of one later head alone."""
    layer, head = sender
    to, receiving = receiver
    kept = {}
    name = f"blocks.{to}.attn.hook_{side}"

    def note(value, hook):
        kept[hook.name] = value.clone()

    def put(value, hook):
        value[:, :, receiving] = kept[hook.name][:, :, receiving]
        return value

    changed = other[f"blocks.{layer}.attn.hook_z"][:, :, head]
    hooks = [sent(layer, head, changed), *frozen_hooks(cache, layer, feed_forward), (name, note)]
    hooked.run_with_hooks(clean, fwd_hooks=hooks)
    return float(metric(hooked.run_with_hooks(clean, fwd_hooks=[(name, put)])))


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
    with torch.no_grad():
        before, (_, other) = float(metric(hooked(clean))), hooked.run_with_cache(corrupted)
        total = effects(model, CLEAN, target=ANSWER, against=OTHER)
        asked = PredictionTarget.about(model, CLEAN, ANSWER, OTHER)
        ours_direct = direct_effects(
            asked, RowEngine(asked.loaded, asked.given, asked.reading), list(total.parts)
        )
        for name, own_changes, freeze in (
            ("total", total.changes.tolist(), False),
            ("direct", ours_direct, True),
        ):
            worst = 0.0
            for index, change in enumerate(own_changes):
                layer, head = divmod(index, 4)
                hooks = [sent(layer, head, 0.0), *(frozen_hooks(cache, layer, True) if freeze else [])]
                theirs = float(metric(hooked.run_with_hooks(clean, fwd_hooks=hooks))) - before
                worst = max(worst, abs(theirs - change))
            apart[name] = worst
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        own = regard.load(folder)
        for feed_forward in ("frozen", "recomputed"):
            options = {"answer": ANSWER, "against": OTHER, "feed_forward": feed_forward}
            found = path_effects(own, CLEAN, CORRUPTED, sender=(0, 1), **options)
            apart[f"paths, {feed_forward}"] = max(
                abs(path.change + before - path_in_lens(hooked, clean, cache, other, metric, (0, 1),
                                                        (path.layer, path.head), path.side,
                                                        feed_forward == "frozen"))
                for path in found.paths
            )  # fmt: skip
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
