"""Private training of Hugging Face models. Requires the extra `huggingface`."""

from prudent.training.adapters.huggingface.trainer import PrivateTrainer

__all__ = ["PrivateTrainer"]
