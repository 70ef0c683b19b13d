"""Private training of Hugging Face models: a `Trainer` and its self-tests.

Requires the extra `huggingface`.
"""

from prudent.training.adapters.huggingface.self_test import Reach, reach
from prudent.training.adapters.huggingface.trainer import PrivateTrainer

__all__ = ["PrivateTrainer", "Reach", "reach"]
