"""Make a file of public features again, and print how it was made, as JSON.

glyphs-landmarks: codes of synthetic glyphs and of digits written down as strokes; reads no data.
letters-landmarks: codes of public letters (data set emnist-az) and of digits written as strokes.
resnet18-landmarks: codes of random images, and their statistics.
glyphs: a network trained on synthetic glyphs; two minutes on a GPU, hours on a CPU.
letters: a network trained on public letters (data set emnist-az).
minilm: the direction between blame and praise, from made-up reviews.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tools.feature_files import glyphs, landmarks, letters, sentences

_LANDMARKS = ("glyphs-landmarks", "letters-landmarks", "resnet18-landmarks")
_NETWORKS = {"glyphs": glyphs, "letters": letters}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what the arguments name."""
    parser = argparse.ArgumentParser(
        "python -m tools.feature_files",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("features", choices=(*_LANDMARKS, *_NETWORKS, "minilm"))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, help="of training a network, for a trial")
    given = parser.parse_args(arguments)
    if given.features in _NETWORKS:
        network = _NETWORKS[given.features]
        provenance = network.make(given.out, device=given.device, steps=given.steps)
    elif given.features == "minilm":
        provenance = sentences.make(given.out)
    elif given.features == "resnet18-landmarks":
        provenance = landmarks.make_photographs(given.out)
    else:
        provenance = landmarks.make(given.out, given.features.removesuffix("-landmarks"))
    print(json.dumps(provenance))


if __name__ == "__main__":
    main()
