"""Certified accuracy over ten draws of noise: `python -m benchmarks.certify`.

Writes `packages/lab/src/prudent_lab/explore/certified.json`, from which README, `docs/certify.md`
and the explorer take their numbers (`tests/certify/test_numbers.py` compares them), and the picture
`docs/images/certified.svg`. What it holds of other rules, measured once, is kept.

Digits 50,000 to 60,000 of the training part, on which the maps were chosen
(`benchmarks.certify_choice`), are left out, so the private records are the first 50,000. The test
records are read once for each row; nothing is chosen by them. Codes of digits are kept in the cache
of the user.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from prudent.certify.classifier import RECORDS, CertifiedClassifier
from prudent.certify.counts import decided, moves_of, scores_of
from prudent_lab import certifying
from prudent_lab.certifying import CertifyResult, median_radius, shares
from prudent_lab.data_files import cached_array
from prudent_lab.demo import panels

DRAWS = 10
_AT_ONCE = 500
ROWS = {"letters": (0.3, 0.1), "glyphs": (1.0, 0.3)}
DRAWN = (("letters", 0.3, "public letters"), ("glyphs", 1.0, "no public data"))
TITLES = {"letters": "public letters", "glyphs": "no data"}
ROOT = Path(__file__).parents[1]
FILE = ROOT / "packages/lab/src/prudent_lab/explore/certified.json"
PICTURE = ROOT / "docs/images/certified.svg"
NOTE = (
    "MNIST, the first 50,000 training records, one private release each, δ = 0; share of 10,000 "
    "test digits whose right prediction no such number of inserted or removed records changes. "
    f"Mean of {DRAWS} draws of noise."
)


def codes(partition, records):
    """The codes of records, from the cache if they were computed before."""
    content = hashlib.sha256(np.ascontiguousarray(records).data)
    content.update(partition.features.digest.encode())
    return cached_array(
        f"codes-{content.hexdigest()[:48]}",
        lambda: certifying.coded_by(partition, records).astype(np.int16),
    ).astype(np.float32)


def measured(features, epsilons, train, test):
    """A row for each ε: mean and standard deviation over draws of what is certified."""
    partition = CertifiedClassifier(1.0, 10, None, features).known().partition
    records, queries = (codes(partition, part[0]) for part in (train, test))
    cells = certifying.of_codes(partition)
    models = [CertifiedClassifier(epsilon, 10, None, cells) for epsilon in epsilons]
    exact = models[0].count(records, train[1])
    released = [model.fit_counts(exact).counts_ for model in models for _ in range(DRAWS)]
    parts = [[] for _ in released]
    for start in range(0, len(queries), _AT_ONCE):
        weights = cells.weights(queries[start : start + _AT_ONCE])
        moves = moves_of(weights, cells.sizes)
        for counts, part in zip(released, parts, strict=True):
            scores = scores_of(weights, counts.cells, counts.totals, counts.tables)
            part.append(decided(scores, moves))
    found = []
    for part in parts:
        winners, radii = (np.concatenate(each) for each in zip(*part, strict=True))
        found.append((winners == test[1], radii))
    for place, epsilon in enumerate(epsilons):
        yield row(features, epsilon, found[place * DRAWS : (place + 1) * DRAWS])


def row(features, epsilon, found):
    """Mean and standard deviation over draws: which predictions are right, and all radii."""
    reach = max(2000, *(int(np.quantile(radii[right], 0.999)) for right, radii in found))
    points = np.unique(np.linspace(0, reach, 201).astype(np.int64)).tolist()

    def means(numbers):
        each = [shares(right, radii, numbers) for right, radii in found]
        return {k: round(float(np.mean([row[k] for row in each])), 9) for k in numbers}, each

    mean, each = means(RECORDS)
    return {
        "name": f"{TITLES[features]}, ε = {epsilon:g}",
        "features": features,
        "epsilon": epsilon,
        "accuracy": list(mean.values()),
        "deviation": [float(np.std([row[k] for row in each], ddof=1)) for k in RECORDS],
        "least": [min(row[k] for row in each) for k in RECORDS],
        "median_radius": float(np.mean([median_radius(*draw) for draw in found])),
        "curve": list(means(points)[0].items()),
    }


def picture(curves):
    """Draw what two of the classifiers certify."""
    found = []
    for features, epsilon, title in DRAWN:
        row = next(r for r in curves if (r["features"], r["epsilon"]) == (features, epsilon))
        certified = dict(zip(RECORDS, row["accuracy"], strict=True))
        result = CertifyResult(
            row["accuracy"][0], certified, {}, {}, row["median_radius"], row["curve"], epsilon
        )
        found.append((title, result))
    with panels(1, PICTURE) as (axes,):
        certifying.draw(found, axes)
        axes.set_title("MNIST, private classifiers: proved for any bad records")


def main():
    train, test = certifying.read("mnist")
    story = json.loads(FILE.read_text("utf-8"))
    story |= {"records": list(RECORDS), "draws": DRAWS, "note": NOTE, "curves": []}
    for features, epsilons in ROWS.items():
        for found in measured(features, epsilons, train, test):
            print({k: v for k, v in found.items() if k != "curve"}, flush=True)
            story["curves"].append(found)
    picture(story["curves"])
    FILE.write_text(json.dumps(story, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
