"""A frozen BERT encoder for sentences: MiniLM (Wang et al., 2020), tuned by sentence-transformers.

The mean over the tokens of a text of the last hidden states is its embedding. Weights and
vocabulary are read from the published files `model.safetensors` and `tokenizer.json` of
all-MiniLM-L6-v2; none are shipped or downloaded.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS = 256
"""Tokens of a text that are read, as in training; the rest is cut off."""

_EPSILON = 1e-12
_HEADS = 12


class SentenceEncoder(nn.Module):
    """A BERT encoder and the mean over tokens.

    Attributes:
        weights: By their published names; others are ignored.
        layers: How many layers are run: all, or the first few, which keep more of the wording.
        width: Numbers per text.
    """

    def __init__(self, weights: dict[str, Tensor], layers: int | None = None) -> None:
        super().__init__()
        kept = {name: value for name, value in weights.items() if value.is_floating_point()}
        self.weights = {name: value.float() for name, value in kept.items()}
        self.width = self.weights["embeddings.word_embeddings.weight"].shape[1]
        found = sum(name.endswith("attention.self.query.weight") for name in weights)
        self.layers = found if layers is None else min(layers, found)

    def to(self, device: torch.device | str) -> "SentenceEncoder":  # type: ignore[override]
        """Move the weights."""
        self.weights = {name: tensor.to(device) for name, tensor in self.weights.items()}
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings (n, width) of token numbers (n, length), 0 being no token."""
        present = tokens > 0
        values = self._embedded(tokens)
        for layer in range(self.layers):
            values = self._layer(values, present, f"encoder.layer.{layer}.")
        counts = present.sum(1, keepdim=True).clamp_min(1)
        return (values * present[:, :, None]).sum(1) / counts

    def _embedded(self, tokens: Tensor) -> Tensor:
        words, places, kinds = (
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        values = words[tokens] + places[: tokens.shape[1]] + kinds[0]
        return self._normalised(values, "embeddings.")

    def _layer(self, values: Tensor, present: Tensor, name: str) -> Tensor:
        count, length, width = values.shape

        def heads(part: str) -> Tensor:
            flat = self._dense(values, f"{name}attention.self.{part}")
            return flat.view(count, length, _HEADS, width // _HEADS).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            heads("query"), heads("key"), heads("value"), attn_mask=present[:, None, None]
        )
        mixed = mixed.transpose(1, 2).reshape(count, length, width)
        mixed = self._dense(mixed, f"{name}attention.output.dense")
        values = self._normalised(values + mixed, f"{name}attention.output.")
        inner = functional.gelu(self._dense(values, f"{name}intermediate.dense"))
        return self._normalised(
            values + self._dense(inner, f"{name}output.dense"), f"{name}output."
        )

    def _dense(self, values: Tensor, name: str) -> Tensor:
        return functional.linear(
            values, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        )

    def _normalised(self, values: Tensor, name: str) -> Tensor:
        weight, bias = (self.weights[f"{name}LayerNorm.{part}"] for part in ("weight", "bias"))
        return functional.layer_norm(values, weight.shape, weight, bias, _EPSILON)
