"""Private training of Hugging Face models."""

from prudent.training.huggingface.masks import record_masks

__all__ = ["record_masks"]
