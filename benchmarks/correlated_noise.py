"""Noise that cancels beside DP-SGD: MNIST in few epochs at the same ε.

    python -m benchmarks.correlated_noise [EPSILON]

Trains a perceptron with one hidden layer of 64 units for one epoch of expected batches of 256, at
ε = 8 or another and δ = 1e-5 for zeroing out one record. The learning rate of each method is the
best of `RATES` by accuracy on the last 10,000 training records, which are left out, for one seed;
printed is the accuracy on the test part for five others. Takes three minutes of one processor.
"""

import statistics
import sys

from torch import Tensor, nn

from prudent.training import Execution, Plan, Sum, accuracy, fit
from prudent_lab.datasets import load
from prudent_lab.models import multilayer_perceptron

BANDS, RATES, SEEDS = (1, 4, 16), (2.0, 4.0, 8.0, 16.0), 5
DELTA, BATCH, EPOCHS, CLIP = 1e-5, 256, 1, 0.1


def planned(num_bands: int, records: int, epsilon: float) -> Plan:
    """The plan with the least noise for ε."""
    return Plan(
        sampling_rate=BATCH / records,
        steps=EPOCHS * records // BATCH,
        aggregation=Sum(clip=CLIP, noise_multiplier=1.0),
        num_bands=num_bands,
    ).calibrate(epsilon=epsilon, delta=DELTA)


def trained(plan: Plan, rate: float, seed: int, features: Tensor, labels: Tensor) -> nn.Module:
    """A model trained by a plan; `rate` is relative to the clip."""
    model = multilayer_perceptron((1, 28, 28), 10, seed=seed)
    loss = nn.CrossEntropyLoss(reduction="none")
    execution = Execution(seed=seed)
    fit(plan, model, loss, (features, labels), lr=rate / CLIP, execution=execution)
    return model


def main() -> None:
    """Print a row for each number of bands."""
    data = load("mnist")
    features, labels = data.train_features, data.train_labels
    known, held = (features[:-10_000], labels[:-10_000]), (features[-10_000:], labels[-10_000:])
    epsilon = float(sys.argv[1]) if sys.argv[1:] else 8.0
    for num_bands in BANDS:
        plan = planned(num_bands, len(known[1]), epsilon)
        found = {rate: accuracy(*held)(trained(plan, rate, 100, *known)) for rate in RATES}
        best = max(found, key=lambda rate: found[rate]["accuracy"])
        plan = planned(num_bands, len(labels), epsilon)
        test = accuracy(data.test_features, data.test_labels)
        scores = [
            test(trained(plan, best, seed, features, labels))["accuracy"] for seed in range(SEEDS)
        ]
        rule = plan.aggregation
        assert isinstance(rule, Sum)
        noise = f"noise multiplier {rule.noise_multiplier:.3f}  lr {best:g}/clip"
        mean, spread = statistics.mean(scores), statistics.stdev(scores)
        print(
            f"ε = {epsilon:g}  bands {num_bands:2d}  {noise}  {mean:.2%} ± {spread:.2%}", flush=True
        )


if __name__ == "__main__":
    main()
