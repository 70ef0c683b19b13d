"""The large audits of training in benchmarks/README.md: many real runs, in many processes.

    python -m benchmarks.audit_training --out audit.json --workers 16 --seconds 220

Scores are kept beside the results, in audit.npz, so that a second call goes on where the first
stopped.
"""

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np


def _tested(rate, steps, test, reveals, trim, batch=64.0):
    from prudent.training import FixedTrim, Plan, ProposeTestRelease

    rule = ProposeTestRelease(
        clip=1.0,
        propose=0.5,
        noise_multiplier=1.0,
        test=test,
        reveals=reveals,
        trim=FixedTrim((trim + 0.5) / batch),
    )
    return Plan(sampling_rate=rate, steps=steps, aggregation=rule, expected_batch=batch)


def _plain(rate, steps, noise):
    from prudent.training import Plan, Sum

    rule = Sum(clip=1.0, noise_multiplier=noise)
    return Plan(sampling_rate=rate, steps=steps, aggregation=rule, expected_batch=64.0)


def settings():
    """Name -> (plan, scene, δ, runs of a part, parts, whether runs are lanes)."""
    from prudent.accounting import GaussianTest, LaplaceTest
    from prudent.audit.training.scenes import dirac, displaced

    gaussian, laplace = GaussianTest(2.0), LaplaceTest(1.0)
    found = {
        "dpsgd q=1 T=1": (_plain(1.0, 1, 2.0), None, 1e-5, 1_000_000, 10, True),
        "dpsgd q=0.2 T=10": (_plain(0.2, 10, 1.0), None, 1e-5, 500_000, 20, True),
    }
    for name, plan, trim, delta, part in (
        ("margin q=1", _tested(1.0, 1, gaussian, "margin", 1), 1, 1e-3, 400),
        ("branch q=1", _tested(1.0, 1, gaussian, "monotone-branch", 10), 10, 1e-3, 400),
        ("branch q=0.3 T=5", _tested(0.3, 5, gaussian, "monotone-branch", 10), None, 1e-2, 80),
        ("laplace margin q=0.3 T=5", _tested(0.3, 5, laplace, "margin", 1), None, 1e-2, 80),
    ):
        found[name] = plan, trim, delta, part, 300, False
    scenes = {}
    for name, (plan, trim, *rest) in found.items():
        rule = plan.aggregation
        scenes[name] = plan, dirac(rule) if trim is None else displaced(rule, trim), *rest
    return scenes


def part(name):
    """Scores and coins of some runs of a setting, in a worker."""
    import torch

    from prudent.audit.training.scenes import Likelihood
    from prudent.audit.training.white_box import CanaryAttack

    torch.set_num_threads(1)
    plan, scene, _, runs, _, lanes = settings()[name]
    score = Likelihood(plan, scene).score
    coins = np.random.default_rng().random(runs) < 0.5
    attack = CanaryAttack(name, scene, score, runs, lanes)
    return name, score(attack.releases(plan, coins)), coins


def judged(name, scores, coins):
    """The result of a setting."""
    from prudent.audit.training.scenes import Likelihood
    from prudent.audit.training.white_box import best_reading

    plan, scene, delta, *_ = settings()[name]
    found = {}
    for at in (delta, 1e-3, 1e-2):
        claim, first = {"delta": at, "confidence": 0.95}, len(scores) // 5
        reading, _ = best_reading(
            scores[:first], coins[:first], len(scores) - first, odds=True, **claim
        )
        bound = reading.bound(scores[first:], coins[first:], **claim)
        claimed = plan.epsilon(at)
        found[f"{at:g}"] = {
            "claimed": claimed,
            "exact": Likelihood(plan, scene).epsilon(at),
            "lower": bound.lower,
            "share": bound.lower / claimed,
            "runs": bound.runs,
            "guesses": bound.guesses,
            "right": bound.right,
        }
    return found


class Kept:
    """Scores by setting, written to a file."""

    def __init__(self, path):
        self.path = path
        self.parts = {}
        if path.exists():
            with np.load(path) as saved:
                for name in saved.files:
                    scores, coins = saved[name]
                    self.parts[name] = [(scores, coins > 0)]

    def add(self, name, scores, coins):
        self.parts.setdefault(name, []).append((scores, coins))

    def runs(self, name):
        return sum(len(scores) for scores, _ in self.parts.get(name, []))

    def all(self, name):
        return tuple(np.concatenate(each) for each in zip(*self.parts[name], strict=True))

    def save(self):
        # The lanes are too many to be kept; they are quickly drawn again.
        small = {name: np.stack(self.all(name)) for name in self.parts if "dpsgd" not in name}
        np.savez_compressed(self.path, **small)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the work; for a trial")
    given = parser.parse_args()
    stop = time.monotonic() + given.seconds
    kept = Kept(given.out.with_suffix(".npz"))
    tasks = []
    for name, (_, _, _, size, parts, _) in settings().items():
        wanted = max(1, round(parts * given.fraction))
        tasks += [(i, name) for i in range(max(0, wanted - kept.runs(name) // size))]
    # A little of everything first, so that an early stop leaves something of each.
    tasks.sort()
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        coming = pool.imap_unordered(part, [name for _, name in tasks])
        for _ in tasks:
            try:
                kept.add(*coming.next(timeout=max(0.1, stop - time.monotonic())))
            except multiprocessing.TimeoutError:
                print("out of time", flush=True)
                break
        pool.terminate()
    kept.save()
    results = {name: judged(name, *kept.all(name)) for name in kept.parts}
    given.out.write_text(json.dumps(results, indent=1))
    for name, result in results.items():
        print(name, json.dumps(result, ensure_ascii=False)[:700], flush=True)


if __name__ == "__main__":
    main()
