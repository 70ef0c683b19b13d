"""Train the networks that come with the package, on public letters and synthetic glyphs.

No digit is seen. Every batch has new classes: invented glyphs, or letters of which each class as a
whole may be turned, mirrored and bent into a character of its own. The network learns to tell
characters that it has never seen by the rule of the classifier itself: a copy should be more
similar, in the mean, to the other copies of its class than to those of any other class.
"""

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent import _validate
from prudent.certify.features.glyphs import Hand, glyphs
from prudent.certify.features.network import TOP, Layer, write

_WEIGHT = 127


@attrs.frozen
class Recipe:
    """How a network is trained.

    Attributes:
        data: What it sees: "glyphs", or "both" for letters and glyphs in turn.
        steps: Steps of training.
        scale: Inverse temperature of the loss: large for accuracy, small for large radii.
        width: Number of features.
        channels: Channels of the convolutions.
        variation: See `glyphs`.
        warped: Fraction of letter classes that become another character.
        jitter: Size of the warp of each letter.
        classes: Classes of a batch.
        copies: Images of a class in a batch.
        rate: Largest learning rate.
        seed: Seed of everything random.
    """

    data: str
    steps: int = 5000
    scale: float = 16.0
    width: int = 512
    channels: tuple[int, ...] = (32, 64, 64, 128, 128)
    variation: float = 0.4
    warped: float = 0.5
    jitter: float = 1.0
    classes: int = 52
    copies: int = 16
    rate: float = 3e-3
    seed: int = 1

    def __attrs_post_init__(self) -> None:
        _validate.one_of(("both", "glyphs"), data=self.data)


RECIPES = {"letters": Recipe("both"), "glyphs": Recipe("glyphs")}
"""The recipes of the networks that come with the package."""


class Letters:
    """Public letters, batch by batch.

    Args:
        images: (n, 28, 28), in [0, 1].
        labels: From 0 on.
        hand: Random numbers.
        warped: Fraction of classes that become another character.
        jitter: Size of the warp of each letter.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, hand: Hand, *, warped: float, jitter: float
    ) -> None:
        self._images, self._hand, self._warped, self._jitter = images, hand, warped, jitter
        kinds = int(labels.max()) + 1
        self._members = [torch.nonzero(labels == kind)[:, 0] for kind in range(kinds)]

    def __call__(self, classes: int, copies: int) -> Tensor:
        """Images (classes · copies, 28, 28), class by class."""
        kinds = len(self._members)
        rounds = [self._hand.order(kinds) for _ in range(-(-classes // kinds))]
        chosen = [self._members[kind] for kind in torch.cat(rounds)[:classes].tolist()]
        rows = torch.cat([kind[self._hand.below(len(kind), copies)] for kind in chosen])
        return self._bent(self._images[rows][:, None], classes, copies)[:, 0]

    def _bent(self, images: Tensor, classes: int, copies: int) -> Tensor:
        """A small warp of each image, and a large one of some classes."""
        hand, jitter, count = self._hand, self._jitter, len(images)
        strong = (hand.uniform(classes) < self._warped)[:, None, None]
        own = _affine(hand, count, 0.12 * jitter, 0.08 * jitter, 0.15 * jitter)
        shared = _affine(hand, classes, 3.0, 0.15, 0.3)
        mirror = torch.where(hand.uniform(classes, 1, 1) < 0.5, -1.0, 1.0)
        shared = shared * torch.cat([mirror, torch.ones_like(mirror)], -1)
        shared = torch.where(strong, shared, torch.eye(2, device=shared.device))
        total = shared.repeat_interleave(copies, 0) @ own
        shift = 0.05 * jitter * hand.normal(count, 2, 1)
        grid = functional.affine_grid(
            torch.cat([total, shift], 2), [count, 1, 28, 28], align_corners=False
        )
        bend = torch.where(strong[..., None], 0.12, 0.0) * hand.normal(classes, 2, 5, 5)
        bend = 0.04 * jitter * hand.normal(count, 2, 5, 5) + bend.repeat_interleave(copies, 0)
        field = functional.interpolate(bend, (28, 28), mode="bicubic", align_corners=True)
        grid = grid + field.permute(0, 2, 3, 1)
        return functional.grid_sample(images, grid, align_corners=False)


def _affine(hand: Hand, count: int, turn: float, stretch: float, shear: float) -> Tensor:
    angle = turn * hand.normal(count)
    cos, sin = torch.cos(angle), torch.sin(angle)
    turned = torch.stack([cos, -sin, sin, cos], -1).view(count, 2, 2)
    sizes = torch.exp(stretch * hand.normal(count, 2))
    slants = shear * hand.normal(count)
    skewed = torch.stack([sizes[:, 0], slants, torch.zeros_like(slants), sizes[:, 1]], -1)
    return turned @ skewed.view(count, 2, 2)


class Convolutions(nn.Module):
    """The network in floating point: convolutions, then a dense layer; batch-normalised.

    Outputs are non-negative and of length 1.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        inputs = 1
        *inner, third, last = recipe.channels
        pads = [1] * len(inner) + [0, 0]
        # Images shrink 28, 14, 7 by pooling, and 5, 3 because the last two have no padding.
        self.pools = [2] + [1] * (len(inner) - 2) + [2, 1, 1]
        for outputs, pad in zip((*inner, third, last), pads, strict=True):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=pad, bias=False)
            self.blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(outputs)))
            inputs = outputs
        dense = nn.Linear(9 * last, recipe.width, bias=False)
        self.blocks.append(nn.Sequential(dense, nn.BatchNorm1d(recipe.width)))

    def stages(self, images: Tensor) -> list[Tensor]:
        """The activations after each layer, of images (n, 28, 28) in [0, 1]."""
        values, found = images[:, None], []
        for block, pool in zip(self.blocks, (*self.pools, 0), strict=True):
            if not pool:
                values = values.flatten(1)
            values = functional.relu(block(values))
            if pool > 1:
                values = functional.max_pool2d(values, pool)
            found.append(values)
        return found

    def forward(self, images: Tensor) -> Tensor:
        """The features of images."""
        return functional.normalize(self.stages(images)[-1].float(), dim=1, eps=1e-6)


def similarity_loss(features: Tensor, classes: int, copies: int, scale: float) -> Tensor:
    """Cross-entropy of each copy against its mean similarity to each class, itself left out."""
    kernel = (features @ features.T).view(classes, copies, classes, copies)
    sums, own = kernel.sum(3), torch.arange(classes, device=features.device)
    means = sums / copies
    means[own, :, own] = (sums[own, :, own] - 1) / (copies - 1)
    logits = scale * means.view(classes * copies, classes)
    return functional.cross_entropy(logits, own.repeat_interleave(copies))


def trained(
    recipe: Recipe,
    letters: tuple[Tensor, Tensor] | None = None,
    device: torch.device | str = "cpu",
) -> tuple[tuple[Layer, ...], dict[str, Any]]:
    """Train a network and round it to whole numbers.

    Args:
        recipe: How.
        letters: Images in [0, 1] and labels from 0 on, for `data="both"`.
        device: Where. The same device and versions of libraries give the same weights.

    Returns:
        Layers for `network.write`, and how they were made.
    """
    torch.manual_seed(recipe.seed)
    hand = Hand.seeded(recipe.seed, device)
    model = Convolutions(recipe).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.rate, total_steps=recipe.steps, pct_start=0.1
    )
    source = None
    if recipe.data == "both":
        if letters is None:
            raise _validate.ArgumentError("letters", "images and labels", got=None)
        images, labels = (part.to(device) for part in letters)
        source = Letters(images, labels, hand, warped=recipe.warped, jitter=recipe.jitter)

    def batch(step: int) -> Tensor:
        if source is not None and step % 2 == 0:
            return source(recipe.classes, recipe.copies)
        return glyphs(recipe.classes, recipe.copies, hand, variation=recipe.variation)

    losses = []
    for step in range(recipe.steps):
        loss = similarity_loss(model(batch(step)), recipe.classes, recipe.copies, recipe.scale)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
    last = torch.stack(losses[-100:]).mean().item()
    story = attrs.asdict(recipe) | {"loss": round(last, 4), "torch": torch.__version__}
    sample = torch.cat([batch(0), batch(1)])
    return rounded(model.eval().cpu(), sample.cpu()), story


@torch.no_grad()
def rounded(model: Convolutions, sample: Tensor) -> tuple[Layer, ...]:
    """The network in whole numbers: normalisation folded in, weights and activations 8 bits each.

    Args:
        model: The trained network.
        sample: Public images, from which the range of each activation is taken.
    """
    stages = model.stages(sample)
    layers, before = [], 1.0 / TOP  # what one step of the input is worth
    for index, block in enumerate(model.blocks):
        linear, norm = block[0], block[1]  # type: ignore[index]
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = (linear.weight * factor.view(-1, *[1] * (linear.weight.ndim - 1))).double()
        bias = (norm.bias - norm.running_mean * factor).double()
        flat = weight.flatten(1)
        if weight.ndim == 2:  # channels last, as the whole-number network flattens images
            flat = weight.view(len(weight), -1, 9).transpose(1, 2).flatten(1)
        steps = flat.abs().amax(1).clamp_min(1e-12) / _WEIGHT
        after = max(float(torch.quantile(stages[index].flatten()[:4_000_000], 0.9999)), 1e-6) / TOP
        layers.append(
            Layer(
                weight=torch.round(flat / steps[:, None]).T.contiguous().numpy().astype(np.int8),
                gain=(steps * before / after).float().numpy(),
                bias=(bias / after).float().numpy(),
                size=3 if weight.ndim == 4 else 0,
                pad=linear.padding[0] if weight.ndim == 4 else 0,
                pool=model.pools[index] if weight.ndim == 4 else 1,
            )
        )
        before = after
    return tuple(layers)


def make(name: str, path: Path, *, device: str = "cpu", steps: int | None = None) -> dict[str, Any]:
    """Train a network by its recipe and write its weight file.

    Args:
        name: One of `RECIPES`.
        path: The file to write.
        device: Where to train: minutes on a GPU, many hours on a CPU.
        steps: Fewer steps than the recipe's, for a trial.

    Returns:
        How the weights were made.
    """
    _validate.one_of(RECIPES, name=name)
    recipe = RECIPES[name] if steps is None else attrs.evolve(RECIPES[name], steps=steps)
    letters = None
    if recipe.data == "both":
        from prudent.experiments.datasets import load

        public = load("emnist-az")
        letters = public.train_features[:, 0], public.train_labels
    layers, story = trained(recipe, letters, device)
    write(path, layers, story)
    return story
