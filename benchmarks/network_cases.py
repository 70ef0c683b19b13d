"""The networks of the GPU table: each with random weights, its usual size and its own dropout.

A record is a sequence of 256 tokens, an image, a second of sound, a row of a table or a graph.
Every case also has the size of a toy, at which its gradients are compared with separate ones
(tests/training/gradients/test_named_networks.py). Batch normalisation, which mixes records, is
replaced as `make_private(..., fix=True)` does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.image_networks import MobileNet, UNet
from benchmarks.large_networks import Adapted, resnet18, resnet50
from benchmarks.other_networks import AudioNetwork, ClickNetwork, GraphNetwork
from prudent.training.checking import replace_unsupported_layers

TOY_TOKENS, TOY_LENGTH, LENGTH = 97, 16, 256


@dataclass(frozen=True)
class Case:
    """A model, its batch, and how its inputs and targets look; `True` asks for the toy."""

    model: Callable[[bool], nn.Module]
    batch: int
    draw: Callable[[int, bool, str], tuple[Any, Tensor]]
    warm_up: int = 5  # steps before any is timed; more where layers are dropped at random


def _tokens(batch: int, tiny: bool, device: str) -> Tensor:
    return torch.randint(3, TOY_TOKENS, (batch, TOY_LENGTH if tiny else LENGTH), device=device)


def _language(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    ids = _tokens(batch, tiny, device)
    return {"input_ids": ids}, ids.roll(-1, 1)


def _translation(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    ids = _tokens(batch, tiny, device)
    return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}, ids.flip(1).roll(-1, 1)


def _sentences(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    ids = _tokens(batch, tiny, device)
    lengths = torch.randint(ids.shape[1] // 2, ids.shape[1] + 1, (batch, 1), device=device)
    mask = (torch.arange(ids.shape[1], device=device) < lengths).long()
    labels = torch.randint(0, 2, (batch,), device=device)
    return {"input_ids": ids, "attention_mask": mask}, labels


def _speech(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    frames = 2 * TOY_LENGTH if tiny else 3000
    ids = torch.randint(3, TOY_TOKENS, (batch, 8 if tiny else 64), device=device)
    sound = torch.randn(batch, 8 if tiny else 80, frames, device=device)
    return {"input_features": sound, "decoder_input_ids": ids}, ids.roll(-1, 1)


def _pictures(side: int, toy_side: int) -> Callable[[int, bool, str], tuple[Tensor, Tensor]]:
    def draw(batch: int, tiny: bool, device: str) -> tuple[Tensor, Tensor]:
        size = toy_side if tiny else side
        labels = torch.randint(0, 10, (batch,), device=device)
        return torch.randn(batch, 3, size, size, device=device), labels

    return draw


def _images(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    images, labels = _pictures(224, 32)(batch, tiny, device)
    return {"pixel_values": images}, labels


def _segments(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    images, _ = _pictures(128, 16)(batch, tiny, device)
    return images, torch.randint(0, 4, (batch, *images.shape[2:]), device=device)


def _sounds(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    waves = torch.randn(batch, 1, 512 if tiny else 16_000, device=device)
    return waves, torch.randint(0, 10, (batch,), device=device)


def _clicks(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    tables, rows = (3, 50) if tiny else (26, 40_000)
    numbers = torch.randn(batch, 13, device=device)
    ids = torch.randint(0, rows, (batch, tables, 4), device=device)
    return (numbers, ids), torch.randint(0, 2, (batch,), device=device)


def _graphs(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    nodes, edges = (6, 10) if tiny else (32, 80)
    values = torch.randn(batch, nodes, 16, device=device)
    ends = torch.randint(0, nodes, (batch, 2, edges), device=device)
    present = torch.rand(batch, edges, device=device) < 0.8
    return (values, ends, present), torch.randint(0, 10, (batch,), device=device)


def _shipped(
    name: str, full: dict[str, Any], toy: dict[str, Any], mended: bool = False
) -> Callable[[bool], nn.Module]:
    """A model of transformers, `name` with its configuration."""

    def make(tiny: bool) -> nn.Module:
        import transformers

        kind = name.split("For")[0].removesuffix("LMHeadModel")
        settings = full | (toy if tiny else {})
        model: nn.Module = getattr(transformers, name)(
            getattr(transformers, f"{kind}Config")(**settings)
        )
        if mended:
            replace_unsupported_layers(model)
        return model

    return make


def _waves(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    sound = torch.randn(batch, 800 if tiny else 16_000, device=device)
    return {"input_values": sound}, torch.randint(0, 10, (batch,), device=device)


def _series(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    values = torch.randn(batch, 32 if tiny else 512, 7, device=device)
    return {"past_values": values}, torch.randint(0, 10, (batch,), device=device)


class _Series(nn.Module):
    """A PatchTST that classifies; its scores have a name of their own."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        sizes = {"d_model": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64}
        full = {"d_model": 128, "num_hidden_layers": 3, "num_attention_heads": 16, "ffn_dim": 512}
        settings = {"num_input_channels": 7, "context_length": 32 if tiny else 512}
        settings |= {"patch_length": 8 if tiny else 16, "patch_stride": 8, "num_targets": 10}
        make = _shipped("PatchTSTForClassification", full | settings, sizes, mended=True)
        self.inner = make(tiny)

    def forward(self, past_values: Tensor) -> Tensor:
        scores: Tensor = self.inner(past_values=past_values).prediction_logits
        return scores


def _gemma3(tiny: bool) -> nn.Module:
    import transformers

    settings = _DECODER | {"head_dim": 64} | (_TOY_DECODER if tiny else {})
    model: nn.Module = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**settings))
    return model


def _long_language(batch: int, tiny: bool, device: str) -> tuple[Any, Tensor]:
    ids = torch.randint(3, TOY_TOKENS, (batch, TOY_LENGTH if tiny else 2048), device=device)
    return {"input_ids": ids}, ids.roll(-1, 1)


def _adapted_decoder(tiny: bool) -> nn.Module:
    """A Llama of seven billion frozen parameters in bfloat16, made on the GPU; LoRA of rank 16."""
    place = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(place):
        model = _shipped("LlamaForCausalLM", _SEVEN_BILLION, _TOY_DECODER)(tiny)
    model = (model if tiny else model.bfloat16()).requires_grad_(False)
    for layer in list(model.modules()):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            if isinstance(getattr(layer, name, None), nn.Linear):
                setattr(layer, name, Adapted(getattr(layer, name), 4 if tiny else 16).to(place))
    return model


_TOY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_TOY |= {"intermediate_size": 64, "vocab_size": TOY_TOKENS}
_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_DECODER = _BASE | {"num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 32_000}
_DECODER |= {"use_cache": False}
_TOY_DECODER = _TOY | {"num_key_value_heads": 1, "head_dim": 16}
_SEVEN_BILLION = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_SEVEN_BILLION |= {"intermediate_size": 11_008, "vocab_size": 32_000, "use_cache": False}
_ONE_BILLION = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
_ONE_BILLION |= {"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32_000}
_ONE_BILLION |= {"use_cache": False}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": TOY_TOKENS, "n_positions": 16}
_T5 = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "use_cache": False}
_TOY_T5 = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": TOY_TOKENS}
_DEBERTA = _BASE | {"intermediate_size": 3072, "relative_attention": True, "position_buckets": 256}
_DEBERTA |= {"pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "share_att_key": True}
_TEN = {"num_labels": 10}
_TOY_VIT = {"image_size": 32, "patch_size": 8}
_TOY_SWIN = {"image_size": 32, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2]}
_TOY_SWIN |= {"window_size": 4}
_TOY_CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
_TOY_CONVNEXT |= {"layer_scale_init_value": 0.5}
_B0 = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280}
_TOY_B0 = {"width_coefficient": 0.25, "depth_coefficient": 0.3, "image_size": 32, "hidden_dim": 320}
_WHISPER = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "use_cache": False}
_WHISPER |= {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
_WHISPER |= {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
_TOY_WHISPER = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": TOY_TOKENS}
_TOY_WHISPER |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_mel_bins": 8}
_TOY_WHISPER |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_source_positions": TOY_LENGTH}
_TOY_WHISPER |= dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id"], 0)
_TOY_WHISPER |= {"decoder_start_token_id": 1, "begin_suppress_tokens": None}
_TOY_SEGFORMER = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}
_TOY_SEGFORMER |= {"num_attention_heads": [1, 1, 2, 2]}
_NEOX = _BASE | {"intermediate_size": 3072, "vocab_size": 32_000, "use_cache": False}

_BART = {"use_cache": False, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6}
_BART |= {"encoder_attention_heads": 12, "decoder_attention_heads": 12}
_BART |= {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
_TOY_BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": TOY_TOKENS}
_TOY_BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
_TOY_BART |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": TOY_LENGTH}
_TOY_WAVES = _TOY | {"conv_dim": [16, 16, 16], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3]}
_TOY_WAVES |= {"num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "vocab_size": 32}
_TOY_WAVES |= {"num_conv_pos_embedding_groups": 2, "mask_time_length": 2}
_EXPERTS = _DECODER | {"intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 4}
# Without a graph of its own for every step, experts run one by one; the gradients are the same.
_TOY_EXPERTS = _TOY | {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
_TOY_EXPERTS |= {"experts_implementation": "eager"}
_ALBERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}

CASES = {
    "gpt2": Case(_shipped("GPT2LMHeadModel", {"use_cache": False}, _GPT2), 16, _language),
    "llama": Case(_shipped("LlamaForCausalLM", _DECODER, _TOY_DECODER), 16, _language),
    "qwen3": Case(
        _shipped("Qwen3ForCausalLM", _DECODER | {"head_dim": 64}, _TOY_DECODER), 16, _language
    ),
    "mamba": Case(
        _shipped(
            "MambaForCausalLM",
            {"hidden_size": 768, "num_hidden_layers": 24, "use_cache": False},
            {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": TOY_TOKENS},
        ),
        16,
        _language,
    ),
    "t5": Case(_shipped("T5ForConditionalGeneration", _T5, _TOY_T5), 16, _translation),
    "bert": Case(_shipped("BertForSequenceClassification", {}, _TOY), 32, _sentences),
    "roberta": Case(_shipped("RobertaForSequenceClassification", {}, _TOY), 32, _sentences),
    "deberta": Case(_shipped("DebertaV2ForSequenceClassification", _DEBERTA, _TOY), 32, _sentences),
    "vit": Case(_shipped("ViTForImageClassification", _TEN, _TOY | _TOY_VIT), 32, _images),
    "swin": Case(_shipped("SwinForImageClassification", _TEN, _TOY_SWIN), 32, _images),
    "convnext": Case(_shipped("ConvNextForImageClassification", _TEN, _TOY_CONVNEXT), 32, _images),
    "efficientnet": Case(
        _shipped("EfficientNetForImageClassification", _TEN | _B0, _TOY_B0, mended=True),
        32,
        _images,
    ),
    "mobilenetv3": Case(MobileNet, 32, _pictures(224, 32)),
    "resnet18": Case(
        lambda tiny: resnet18((32, 32)) if tiny else resnet18(), 1024, _pictures(32, 8)
    ),
    "resnet50": Case(
        lambda tiny: resnet50(width=8, counts=(1, 1, 1, 1)) if tiny else resnet50(),
        32,
        _pictures(224, 32),
    ),
    "unet": Case(lambda tiny: UNet(8 if tiny else 64), 16, _segments),
    "audio": Case(lambda tiny: AudioNetwork(8 if tiny else 64), 64, _sounds),
    "clicks": Case(
        lambda tiny: ClickNetwork(3, 50, 8) if tiny else ClickNetwork(26, 40_000, 64),
        2048,
        _clicks,
    ),
    "graph": Case(lambda tiny: GraphNetwork(16 if tiny else 256), 512, _graphs),
    # Named by nobody before they were measured:
    "whisper": Case(
        _shipped("WhisperForConditionalGeneration", _WHISPER, _TOY_WHISPER), 16, _speech
    ),
    "segformer": Case(
        _shipped("SegformerForImageClassification", _TEN, _TOY_SEGFORMER), 32, _images
    ),
    "neox": Case(_shipped("GPTNeoXForCausalLM", _NEOX, _TOY), 16, _language),
    "bart": Case(_shipped("BartForConditionalGeneration", _BART, _TOY_BART), 16, _translation),
    "wav2vec": Case(
        _shipped("Wav2Vec2ForSequenceClassification", _TEN, _TOY_WAVES), 32, _waves, warm_up=400
    ),
    "olmoe": Case(_shipped("OlmoeForCausalLM", _EXPERTS, _TOY_EXPERTS), 16, _language),
    "albert": Case(
        _shipped("AlbertForSequenceClassification", _ALBERT, _TOY | {"embedding_size": 16}),
        32,
        _sentences,
    ),
    "dinov2": Case(_shipped("Dinov2ForImageClassification", _TEN, _TOY | _TOY_VIT), 32, _images),
    "patchtst": Case(_Series, 64, _series),
    "gemma3": Case(_gemma3, 16, _language),
}

LARGE = {
    "llama-7b-lora": Case(_adapted_decoder, 8, _long_language),
    "llama-1b": Case(_shipped("LlamaForCausalLM", _ONE_BILLION, _TOY_DECODER), 16, _language),
}
"""Not in the table unless asked for: they take most of a large GPU."""
