"""Hugging Face models as they are, at the size of toys, against one record at a time.

Random weights in double precision, padding masks on some records. A gradient that is zero up to
rounding, as that of a key's bias, is compared with the size of all gradients.
"""

import importlib.util
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent.training.gradients import BookKeeping, Materialised
from tests.training.gradients.oracle import alone, cross_entropy

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="needs the extra `huggingface`"
    ),
    # Imported by the first test, the libraries warn of what they import.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

RECORDS, LENGTH, TOKENS = 3, 7, 31
SMALL = {
    "vocab_size": TOKENS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 4}
ENCODER = {**SMALL, "num_labels": 3}
IMAGE = {**ENCODER, "image_size": 8, "patch_size": 4, "hidden_dropout_prob": 0.1}
T5 = {"vocab_size": TOKENS, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
NO_DROPOUT = dict.fromkeys(
    ["resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob"], 0.0
) | {"attention_probs_dropout_prob": 0.0}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", SMALL),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "llama, tied": ("LlamaForCausalLM", "LlamaConfig", {**DECODER, "tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**DECODER, "sliding_window": 6}),
    "qwen": ("Qwen3ForCausalLM", "Qwen3Config", DECODER),
    "gemma": ("Gemma2ForCausalLM", "Gemma2Config", DECODER),
    "bert": ("BertForSequenceClassification", "BertConfig", ENCODER),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", ENCODER),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {**ENCODER, "hidden_dim": 24},
    ),
    "modernbert": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**ENCODER, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGE),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"patch_size": 2, "hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2}
        | {"layer_scale_init_value": 0.5, "num_labels": 3},
    ),
}
IMAGES = "vit", "convnext"


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    return pytest.importorskip("transformers")


def build(transformers: ModuleType, name: str, attention: str, **changed: Any) -> nn.Module:
    torch.manual_seed(0)
    made, config, settings = MODELS[name]
    settings = {**settings, **changed, "attn_implementation": attention}
    model = getattr(transformers, made)(getattr(transformers, config)(**settings)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def batch(name: str, attention: str = "sdpa") -> tuple[dict[str, Tensor], Tensor]:
    draw = torch.Generator().manual_seed(4)
    classes = torch.arange(RECORDS) % 3
    if name in IMAGES:
        return {"pixel_values": torch.randn(RECORDS, 3, 8, 8, generator=draw).double()}, classes
    tokens = torch.randint(3, TOKENS, (RECORDS, LENGTH), generator=draw)
    mask = torch.ones_like(tokens)
    mask[1, 4:] = 0
    # Padded on the left. Queries that see no key are NaN in the library's eager attention in double
    # precision.
    mask[2, :2] = attention == "eager"
    inputs = {"input_ids": tokens * mask, "attention_mask": mask}
    if name == "bert":
        inputs["token_type_ids"] = (torch.arange(LENGTH) > 3).long().expand(RECORDS, LENGTH)
    if name == "t5":
        inputs["decoder_input_ids"] = tokens.roll(1, 1)
    is_language_model = "CausalLM" in MODELS[name][0] or name in ("gpt2", "t5")
    return inputs, torch.where(mask == 1, tokens, -100) if is_language_model else classes


def loss(outputs: Any, targets: Tensor) -> Tensor:
    """Of a class, or the mean over the tokens of a sequence that are not padding."""
    if targets.ndim == 1:
        return cross_entropy(outputs.logits, targets)
    each = cross_entropy(outputs.logits[:, :-1].transpose(1, 2), targets[:, 1:])
    return each.sum(1) / (targets[:, 1:] != -100).sum(1)


def check(model: nn.Module, name: str, attention: str = "sdpa") -> None:
    """Norms and a weighted sum of both engines are those of separate backwards."""
    inputs, targets = batch(name, attention)
    truth = alone(model, loss, inputs, targets, RECORDS)
    norms = torch.cat([g.flatten(1) for g in truth.values()], 1).norm(dim=1)
    weights = torch.tensor([0.5, 1.0, 2.0]).double()
    for make in (BookKeeping, Materialised):
        gradients = make(model, loss)(model, inputs, targets)
        torch.testing.assert_close(gradients.norms, norms, rtol=1e-10, atol=0)
        total = gradients.weighted_sum(weights)
        assert list(total) == list(truth)
        for parameter, gradient in truth.items():
            expected = torch.einsum("m,m...->...", weights, gradient)
            assert (total[parameter] - expected).norm() < 1e-11 * norms.sum(), parameter


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_each_record(transformers, name):
    check(build(transformers, name, "eager").eval(), name, "eager")


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("convnext", "gemma")])
def test_gradients_with_fused_attention(transformers, name):
    check(build(transformers, name, "sdpa").eval(), name)


@pytest.mark.parametrize("name", ["gpt2", "bert", "distilbert", "t5", "vit"])
def test_dropout(transformers, name):
    """Both engines draw the same; what is run again has the norm that was announced."""
    model = build(transformers, name, "eager").train()
    inputs, targets = batch(name, "eager")
    norms = []
    for make in (BookKeeping, Materialised):
        torch.manual_seed(2)
        norms.append(make(model, loss)(model, inputs, targets).norms)
    torch.testing.assert_close(*norms)
    again = BookKeeping(model, loss, recompute=True)(model, inputs, targets)
    assert not torch.isclose(again.norms, norms[0], rtol=1e-9).any()
    total = again.weighted_sum(functional.one_hot(torch.tensor(1), RECORDS).double())
    size = torch.cat([value.flatten() for value in total.values()]).norm()
    torch.testing.assert_close(size, again.norms[1])


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_checkpointed(transformers, name):
    model = build(transformers, name, "sdpa", use_cache=False, **NO_DROPOUT)
    model.gradient_checkpointing_enable()
    check(model.train(), name)


@pytest.mark.parametrize(
    ("name", "adapted", "kept"),
    [("gpt2", ["c_attn", "c_proj"], []), ("bert", ["query", "value", "dense"], ["classifier"])],
    ids=["gpt2", "bert"],
)
def test_lora(transformers, name, adapted, kept):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        r=2, target_modules=adapted, modules_to_save=kept or None, fan_in_fan_out=name == "gpt2"
    )
    model = peft.get_peft_model(build(transformers, name, "sdpa"), settings).double().eval()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in trained)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    check(model, name)
