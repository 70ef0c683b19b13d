"""Train the network of the map `glyphs`, on synthetic glyphs; no data of any kind is read.

The network learns to name thousands of random characters, some with closed curves, from a few
copies of each. Its last activations are centred and whitened by their covariance within further
characters, which it has not seen.
"""

from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from prudent import _validate
from prudent.lab.feature_files import letters
from prudent.lab.feature_files.glyphs import Hand, glyphs
from prudent.records.whole_network import TOP, Layer, write_network

_AT_ONCE = 4000


def _training() -> letters.NetworkRecipe:
    return letters.NetworkRecipe(steps=4000, channels=(32, 64, 128, 128), half=True)


@attrs.frozen
class GlyphRecipe:
    """How the network is made.

    Attributes:
        classes: Characters that it learns to name.
        others: Characters that the covariance is taken of.
        copies: Images of each character.
        variation: How much copies differ; see `glyphs`.
        loops: Probability that a curve is closed.
        seed: Of the characters; that of the others is the next one.
        training: The network and how it is trained; `sample` is not used.
    """

    classes: int = 10_000
    others: int = 3000
    copies: int = 20
    variation: float = 0.2
    loops: float = 0.25
    seed: int = 5
    training: letters.NetworkRecipe = attrs.field(factory=_training)

    def drawn(self, classes: int, seed: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Images of new characters, as bytes, and their classes."""
        hand, at_once = Hand.seeded(seed, device), max(1, _AT_ONCE // self.copies)
        parts = []
        for start in range(0, classes, at_once):
            count = min(at_once, classes - start)
            images = glyphs(count, self.copies, hand, variation=self.variation, loops=self.loops)
            parts.append((TOP * images).round().to(torch.uint8))
        return torch.cat(parts), torch.arange(classes, device=device).repeat_interleave(self.copies)


def trained(
    recipe: GlyphRecipe, device: torch.device | str = "cpu"
) -> tuple[tuple[Layer, ...], dict[str, Any]]:
    """Train a network on synthetic glyphs and round it to whole numbers.

    Returns:
        Layers for `write_network`, and how they were made.
    """
    images, labels = recipe.drawn(recipe.classes, recipe.seed, device)
    random = letters.seeded(recipe.training, device)
    model, loss = letters.fitted(recipe.training, images, labels, random)
    return assembled(recipe, model, device), attrs.asdict(recipe) | {
        "loss": loss,
        "torch": torch.__version__,
    }


def assembled(
    recipe: GlyphRecipe, model: letters.Convolutions, device: torch.device | str = "cpu"
) -> tuple[Layer, ...]:
    """The layers of a trained network, centred and whitened by characters it has not seen."""
    images, labels = recipe.drawn(recipe.others, recipe.seed + 1, device)
    return letters.whole(model, images, labels, recipe.training.shrink)


def make(
    path: Path, recipe: GlyphRecipe | None = None, *, device: str = "cpu", steps: int | None = None
) -> dict[str, Any]:
    """Train the network by its recipe and write its weight file.

    Args:
        path: The file to write.
        recipe: How; None: that of the network that comes with the package.
        device: Where to train: two minutes on a GPU, hours on a CPU.
        steps: Fewer steps than the recipe's, for a trial.

    Returns:
        How the weights were made.
    """
    recipe = recipe or GlyphRecipe()
    if steps is not None:
        training = attrs.evolve(recipe.training, steps=_validate.count(1, steps=steps))
        recipe = attrs.evolve(recipe, training=training)
    layers, provenance = trained(recipe, device)
    write_network(path, layers, provenance)
    return provenance
