"""Private training of Hugging Face models: a `Trainer`, its self-tests, and masks for other loops.

Requires the extra `huggingface`.
"""

from prudent.training.huggingface.masks import record_masks
from prudent.training.huggingface.self_test import Reach, reach
from prudent.training.huggingface.trainer import PrivateTrainer

__all__ = ["PrivateTrainer", "Reach", "reach", "record_masks"]
