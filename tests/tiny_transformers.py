"""Tiny models of every type transformers has, built from their configs alone, and what to give them."""

import copy
import inspect
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PretrainedConfig, ResNetConfig
from transformers.models.auto import modeling_auto

VOCAB = 99
_TEXT, _ANSWER, _PADDED = 13, 7, 4  # tokens: read, answered, and of padding

# The first rule whose pattern fits a field's whole name gives its size. `hidden` and `head` are free.
_SIZES: tuple[tuple[str, int | str], ...] = (
    (
        r"(num_|n_)?(text_|encoder_|decoder_|vision_|hidden_|memory_attention_|qformer_|resampler_)*"
        r"(num_)?(hidden_)?(layers?|depth|blocks)",
        2,
    ),
    (r"num_(encoder|decoder|attn|prediction_head|pretrain|dense)_?(layers?|blocks)", 2),
    (r".*(key_value_heads|kv_heads)|num_kv_heads|n_kv_heads|multi_query_group_num", "kv"),
    (r".*(num_|n_)?(attention_)?heads|n_head|.*_heads", "heads"),
    (
        r"(qk_|v_|attention_|swa_|global_|index_|linear_|linear_key_|linear_value_|mamba_)?(rope_|nope_)?"
        r"(head_dim|d_head|dim_head|head_size)|d_kv|kv_channels|qk_rope_head_dim|mlstm_dim|attention_key_dim",
        "head",
    ),
    (r"rotary_dim", "head"),
    (r"num_(local_|routed_|null_)?experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|num_selected_experts", 2),
    (r"n_group|topk_group|num_expert_group|num_shared_experts|n_shared_experts|moe_num_shared_experts", 1),
    (r"first_k_dense_replace", 1),
    (r"(kv|q|o|v|k)_lora_rank", 16),
    (r"index_topk", 6),
    (r"vocab_size|.*_vocab_size|padded_vocab_size", VOCAB),
    (r"type_vocab_size", 2),
    (
        r"(max_position_embeddings|n_positions|n_ctx|max_(source|target)_positions|max_seq_len|max_seq_length"
        r"|context_length|seq_length|max_sequence_length|model_max_length)",
        64,
    ),
    (r"max_2d_position_embeddings", 64),
    (r"(image|pretrain_image|input|img)_(size|resolution)", 32),
    (r"patch_size", 8),
    (r"sliding_window(_size)?|attention_window_size|attention_chunk_size|local_attention", 5),
    (r"num_mel_bins|n_mels|feature_size|num_mels", 16),
    (
        r"(moe_|shared_|shared_expert_|decoder_|encoder_|vision_|text_|dense_|mlp_)?"
        r"(intermediate_size|ffn_dim|ffn_hidden_size|ffn_hidden|d_ff|inner_dim|n_inner|mlp_dim|dim_feedforward)"
        r"|.*_intermediate_size|feedforward_size|ff_dim",
        "ff",
    ),
    (
        r"(cross_attention_|text_|vision_|audio_|image_text_|encoder_|decoder_|backbone_|hidden_|"
        r"embedding_|word_embed_|projection_|projector_|out_|output_|query_|pooler_|proj_|fusion_|fpn_)*"
        r"(hidden_size|hidden_dim|embed_dim|embedding_size|embedding_dim|d_model|n_embd|dim|projection_dim"
        r"|hidden_sizes?|embed_proj_dim|model_dim|emb_dim|d_embed|channels|output_size|proj_dim)",
        "hidden",
    ),
    (r"num_queries|num_query_tokens|num_latents|resampler_n_latents|num_register_tokens", 6),
    (r"conv_dim|num_filters|.*_channels_dim", 16),
    (r"state_size|mamba_d_state|ssm_state_size", 8),
    (r"num_codebooks|num_quantizers", 2),
    (r"codebook_size|num_embeddings", 32),
    (r"num_conv_pos_embedding_groups", 4),
    (r"num_conv_pos_embeddings", 8),
)
_VARIANTS = (
    {"hidden": 32, "head": 8, "heads": 4, "kv": 2, "ff": 40},
    {"hidden": 32, "head": 8, "heads": 4, "kv": 4, "ff": 64},
    {"hidden": 64, "head": 16, "heads": 4, "kv": 2, "ff": 64},
    {"hidden": 48, "head": 12, "heads": 4, "kv": 1, "ff": 48},
)
_SMALL_IMAGES = {
    "embed_dim": 24,
    "num_heads": [2] * 4,
    "depths": [1, 2, 1, 1],
    "window_size": 4,
    "patch_size": 4,
}
_SERIES = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3], "num_time_features": 1,
    "feature_size": None, "input_size": None,
}  # fmt: skip


def _backbone(*stages: str) -> dict[str, Any]:
    made = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8] * 4,
        depths=[1] * 4,
        out_features=[f"stage{stage}" for stage in stages],
    )
    return {"backbone_config": made, "backbone": None, "use_timm_backbone": False}


# What the config of a type leaves open, or what must fit together. None: as the class has it.
_CHOSEN: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 5},
    "esm": {"vocab_size": VOCAB, "pad_token_id": 1, "mask_token_id": 3},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "deepseek_v2": {"num_experts_per_tok": 2, "num_key_value_heads": 4, "head_dim": 8},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "ministral": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "swinv2": {**_SMALL_IMAGES, "pretrained_window_sizes": [0] * 4},
    "reformer": {
        "axial_pos_embds": False, "attn_layers": ["local", "lsh"], "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4, "num_buckets": 2, "hash_seed": 0, "feed_forward_size": 40,
    },
    "speech_to_text": {"input_feat_per_channel": 16, "conv_channels": 32},
    "lxmert": {"visual_feat_dim": 24, "l_layers": 1, "x_layers": 1, "r_layers": 1},
    "detr": _backbone("4"),
    "conditional_detr": _backbone("4"),
    "table-transformer": _backbone("4"),
    "deformable_detr": {**_backbone("2", "3", "4"), "num_feature_levels": 3},
    "autoformer": _SERIES,
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "yolos": {"image_size": [32, 48], "num_detection_tokens": 6},
    "mgp-str": {"image_size": [32, 64], "max_token_length": 7},
    "qwen2_vl_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    },
    "patchtst": {"context_length": 32, "patch_length": 8, "patch_stride": 8, "num_input_channels": 2},
}  # fmt: skip
_ORDER = (
    "MODEL_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES",
)  # fmt: skip


class CannotBuild(Exception):
    """No tiny model of this type could be made to run."""


@dataclass(frozen=True)
class Built:
    model: Any
    inputs: dict[str, torch.Tensor]  # without padding
    padded: dict[str, torch.Tensor] | None  # None: takes no mask of padding


def model_types() -> list[str]:
    return sorted(CONFIG_MAPPING)


def build(model_type: str, seed: int = 0, mode: str | None = None) -> Built:
    """A tiny model with widened random weights, and inputs on which it runs. `mode`: another than its own."""
    reasons = []
    for variant, short in product(_VARIANTS, (True, False)):
        try:
            config = tiny_config(CONFIG_MAPPING[model_type], variant, short, _CHOSEN.get(model_type, {}))
            if mode is not None:
                config._attn_implementation = mode
        except Exception as error:
            reasons.append(_short(error))
            continue
        for make in _classes(model_type):
            try:
                torch.manual_seed(seed)
                model = make(config) if make.__name__ != "AutoModel" else make.from_config(config)
                widen(model.float().eval())
                inputs = inputs_for(model)
                return Built(model, inputs, _with_padding(model, inputs, model_type))
            except Exception as error:  # thousands of ways: the reason is kept
                reasons.append(_short(error))
    raise CannotBuild("; ".join(dict.fromkeys(reasons)))


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:120]}"


def tiny_config(
    kind: type[PretrainedConfig], sizes: dict[str, int], short: bool, chosen: dict[str, Any]
) -> PretrainedConfig:
    """A config of that class with every size made small. `short`: one layer of each type it lists."""
    small = {**_shrunk(kind(), sizes, short), **chosen}
    return kind(**{name: value for name, value in small.items() if name not in chosen or value is not None})


def _shrunk(config: PretrainedConfig, sizes: dict[str, int], short: bool) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name in ("model_type", "transformers_version", "architectures"):
            continue
        if isinstance(value, PretrainedConfig):
            small[name] = type(value)(**_shrunk(value, sizes, short))
        elif isinstance(value, dict) and "mrope_section" in value:
            quarter = sizes["head"] // 8
            small[name] = {**value, "mrope_section": [2 * quarter, quarter, quarter]}
        elif isinstance(value, bool) or not isinstance(value, int | list | tuple):
            continue
        elif isinstance(value, int):
            size = _size(name, value, sizes)
            if size is not None:
                small[name] = size
        elif name == "depths":
            small[name] = [1] * len(value)
        elif name in ("hidden_sizes", "embed_dims") and all(isinstance(item, int) for item in value):
            small[name] = [sizes["hidden"]] * len(value)
    kinds = getattr(config, "layer_types", None)
    if short and isinstance(kinds, list) and kinds and all(isinstance(item, str) for item in kinds):
        shown = list(dict.fromkeys(kinds))
        small["layer_types"] = (shown * 2)[: max(2, len(shown))]
        small["num_hidden_layers"] = len(small["layer_types"])
        for name in ("mlp_layer_types", "layers_block_type", "block_types"):
            value = getattr(config, name, None)
            if isinstance(value, list):
                small[name] = (value * 8)[: small["num_hidden_layers"]]
    elif not short:
        small.pop("num_hidden_layers", None)  # as many as its lists speak of
    return small


def _size(name: str, value: int, sizes: dict[str, int]) -> int | None:
    if re.fullmatch(r".*token_(id|index)", name):
        return min(value, VOCAB - 1 - sum(map(ord, name)) % 10) if value >= VOCAB - 12 else None
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            number = sizes[size] if isinstance(size, str) else size
            return number if value > 0 else None
    return None


def _classes(model_type: str) -> list[Any]:
    import transformers

    names: list[str] = []
    others = sorted(name for name in dir(modeling_auto) if name.endswith("MAPPING_NAMES"))
    for table in dict.fromkeys((*_ORDER, *others)):
        if table == "CONFIG_MAPPING_NAMES":
            continue
        name = getattr(modeling_auto, table).get(model_type, ())
        names += [name] if isinstance(name, str) else list(name)
    return [getattr(transformers, name) for name in dict.fromkeys(names) if hasattr(transformers, name)][:3]


def widen(model: torch.nn.Module) -> None:
    """Random weights large enough that attention is far from uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.normal_(std=1.7 * (parameter.shape[0] / parameter.numel()) ** 0.5)
            elif not bool(parameter.isfinite().all()):
                parameter.zero_()


def inputs_for(model: Any) -> dict[str, torch.Tensor]:
    """The first set of arguments on which the model runs."""
    names = set(inspect.signature(model.forward).parameters)
    main = getattr(model, "main_input_name", "input_ids")
    errors = []
    for given in _candidates(model, names, main):
        if not set(given) <= names:
            continue
        try:
            with torch.no_grad():
                model(**copy.copy(given))
            return given
        except Exception as error:
            errors.append(_short(error))
    raise CannotBuild("no inputs: " + "; ".join(dict.fromkeys(errors))[:300])


def _candidates(model: Any, names: set[str], main: str) -> Any:
    generator = torch.Generator().manual_seed(1)

    def ids(n: int) -> torch.Tensor:
        return torch.randint(5, VOCAB - 15, (2, n), generator=generator)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    text = {"input_ids": ids(_TEXT)}
    if "attention_mask" in names:
        text["attention_mask"] = torch.ones(2, _TEXT, dtype=torch.long)
    answer = {"decoder_input_ids": ids(_ANSWER)} if "decoder_input_ids" in names else {}
    channels, side = _find(model.config, "num_channels", 3), _find(model.config, "image_size", 32)
    high, side = (side, side) if isinstance(side, int) else (side[0], side[-1])
    mels = _find(model.config, "num_mel_bins", 16)
    pixels = numbers(2, channels, high, side)
    video = numbers(2, _find(model.config, "num_frames", 4), channels, side, side)
    sounds = [numbers(2, mels, 64), numbers(2, 64, mels), numbers(2, mels, 128), numbers(2, mels, 3000)]
    if main == "input_ids" or "input_ids" in names:
        yield {**text, **answer}
        yield text
        yield {"input_ids": text["input_ids"], **answer}
        yield {**text, "pixel_values": pixels}
        yield {**text, "bbox": torch.zeros(2, _TEXT, 4, dtype=torch.long)}
        for sound in sounds[:2]:
            yield {**text, "input_features": sound}
    if "visual_feats" in names:
        yield {**text, "visual_feats": numbers(2, 5, 24), "visual_pos": numbers(2, 5, 4)}
    if "past_values" in names:
        times = {"past_time_features": numbers(2, 11, 1), "future_time_features": numbers(2, 4, 1)}
        known = {"past_observed_mask": torch.ones(2, 11), "future_values": numbers(2, 4)}
        yield {"past_values": numbers(2, 11), **times, **known}
        yield {"past_values": numbers(2, 32, 2)}
    yield {"pixel_values": pixels, **answer}
    yield {"pixel_values": pixels}
    yield {"pixel_values": numbers(2, channels, 64, 64)}
    yield {"pixel_values": video}
    yield {"pixel_values_videos": video}
    for name in ("input_values", "input_features"):
        for sound in sounds:
            yield {name: sound, **answer}
            yield {name: sound}
        yield {name: numbers(2, 3200), **answer}
        yield {name: numbers(2, 3200)}
        yield {name: numbers(2, 1, 3200)}


def _find(config: Any, name: str, default: Any) -> Any:
    value = getattr(config, name, None)
    if value is not None:
        return value
    for part in vars(config).values():
        if isinstance(part, PretrainedConfig):
            value = _find(part, name, None)
            if value is not None:
                return value
    return default


def _with_padding(model: Any, inputs: dict[str, Any], model_type: str) -> dict[str, torch.Tensor] | None:
    if "attention_mask" not in inputs:
        return None
    writes = model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    reads = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    mask = inputs["attention_mask"].clone()
    mask[1, slice(0, _PADDED) if writes and not reads else slice(_TEXT - _PADDED, _TEXT)] = 0
    padded = {**inputs, "attention_mask": mask}
    with suppress(Exception), torch.no_grad():
        model(**padded)
        return padded
    return None
