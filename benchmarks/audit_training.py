"""The large audits of training in benchmarks/README.md: many real runs, in many processes.

    python -m benchmarks.audit_training --out audit.json --device cuda --workers 16 --seconds 220

Processes take runs of the white-box audits and of the small black-box audit; this one takes the
black-box runs of a convolutional network on the device. Scores are kept beside the results, in
audit.npz, so that a second call goes on where the first stopped.
"""

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

DELTA = 1e-5


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


def white_settings():
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


def black_plan(records, steps):
    from prudent.training import Plan, Sum

    rule = Sum(clip=1.0, noise_multiplier=1.0)
    plan = Plan(sampling_rate=1.0, steps=steps, aggregation=rule, expected_batch=float(records))
    return plan.calibrate(epsilon=10, delta=DELTA)


# Name -> records, network, epochs of public training, steps, learning rate.
BLACK_CPU = {"perceptron, crafted": (100, "perceptron", 10, 10, 0.2)}
BLACK_DEVICE = {
    "cnn, crafted, lr 0.5": (1000, "cnn", 20, 30, 0.5),
    "cnn, crafted, lr 4": (1000, "cnn", 20, 30, 4.0),
    "cnn, random start, lr 4": (1000, "cnn", 0, 30, 4.0),
}
_TARGETS = {}


def white_part(task):
    """Scores and coins of some runs of a white-box setting."""
    from prudent.audit.training.scenes import Likelihood
    from prudent.audit.training.white_box import CanaryAttack

    name = task[1]
    plan, scene, _, part, _, lanes = white_settings()[name]
    score = Likelihood(plan, scene).score
    coins = np.random.default_rng().random(part) < 0.5
    attack = CanaryAttack(name, scene, score, part, lanes)
    return name, score(attack.releases(plan, coins)), coins


def black_part(task, device="cpu", part=40):
    """Scores and coins of some black-box runs."""
    from prudent.audit.training.black_box import final_scores
    from prudent.training import Execution
    from prudent_lab.audited_digits import crafted

    name = task[1]
    records, network, epochs, steps, rate = (BLACK_CPU | BLACK_DEVICE)[name]
    key = records, network, epochs
    if key not in _TARGETS:
        _TARGETS[key] = crafted(records, network=network, epochs=epochs, public=5000, device=device)
    coins = np.random.default_rng().random(part) < 0.5
    scores = np.empty(part)
    execution = Execution(device=device, distributed=False)
    for present in (False, True):
        places = coins == present
        scores[places] = final_scores(
            black_plan(records, steps),
            _TARGETS[key],
            present=present,
            runs=int(places.sum()),
            execution=execution,
            lr=rate,
        )
    return name, scores, coins


def part(task):
    """One part of the work, in a worker."""
    import torch

    torch.set_num_threads(1)
    return (white_part if task[0] == "white" else black_part)(task)


def judged(name, scores, coins):
    """The result of a setting."""
    from prudent.audit.training.black_box import judge_scores
    from prudent.audit.training.scenes import Likelihood
    from prudent.audit.training.white_box import Claim, best_reading

    if name in BLACK_CPU | BLACK_DEVICE:
        records, _, _, steps, _ = (BLACK_CPU | BLACK_DEVICE)[name]
        result = judge_scores(black_plan(records, steps), scores, coins, delta=DELTA, claimed=10.0)
        gap = scores[coins].mean() - scores[~coins].mean()
        spread = np.sqrt((scores[coins].var() + scores[~coins].var()) / 2)
        return result.plain() | {"d_prime": float(gap / spread)}
    plan, scene, delta, *_ = white_settings()[name]
    found = {}
    for at in (delta, 1e-3, 1e-2):
        claim, first = Claim(at, 0.95), len(scores) // 5
        reading, _ = best_reading(
            scores[:first], coins[:first], len(scores) - first, claim, odds=True
        )
        bound = reading.bound(scores[first:], coins[first:], claim)
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
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the work; for a trial")
    parser.add_argument("--black-runs", type=int, default=4000)
    given = parser.parse_args()
    stop = time.monotonic() + given.seconds
    kept = Kept(given.out.with_suffix(".npz"))
    tasks = []
    for name, (_, _, _, size, parts, _) in white_settings().items():
        wanted = max(1, round(parts * given.fraction))
        tasks += [("white", name, i) for i in range(max(0, wanted - kept.runs(name) // size))]
    for name in BLACK_CPU:
        left = max(0, round(given.black_runs * given.fraction) - kept.runs(name))
        tasks += [("black", name, i) for i in range(-(-left // 40))]
    # A little of everything first, so that an early stop leaves something of each.
    tasks.sort(key=lambda task: (task[2] >= 3, task[2] / 300))
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        coming = pool.imap_unordered(part, tasks)
        if given.device != "cpu":
            _on_device(given, kept, stop)
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


def _on_device(given, kept, stop):
    """The black-box runs of the convolutional network."""
    wanted = round(given.black_runs * given.fraction)
    for number, name in enumerate(BLACK_DEVICE):
        # Later settings may use what earlier ones leave of the time.
        share = (stop - 20 - time.monotonic()) / (len(BLACK_DEVICE) - number)
        end = time.monotonic() + share
        while kept.runs(name) < wanted and time.monotonic() < end:
            start = time.monotonic()
            size = min(1000, wanted)
            kept.add(*black_part(("black", name), device=given.device, part=size))
            took = time.monotonic() - start
            print(f"{name}: {size} runs in {took:.1f} s", flush=True)
            if time.monotonic() + took > end:
                break


if __name__ == "__main__":
    main()
