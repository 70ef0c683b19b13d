"""What an answer of the accountants costs in time, next to the libraries it stands beside.

    python -m benchmarks.accounting --rounds 5

Every line of the first table is a ratio of two times taken in turn in one run, so that a busy
machine slows both alike; the table gives the median of the ratios. The second is of prices that no
peer has, in processor seconds. `--write` puts both into benchmarks/README.md.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant as PeerRdpAccountant

from prudent.accounting import (
    Adjacency,
    Certifier,
    GaussianTest,
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
    Relation,
    Run,
    epsilon_of,
    to_json,
)

RATE, NOISE, STEPS, DELTA, TARGET = 256 / 60_000, 1.1, 10_000, 1e-5, 3.0
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- accounting: begin -->", "<!-- accounting: end -->"

Answer = Callable[[], float]


def gaussian() -> dp.DpEvent:
    return dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(NOISE))


def release(test: LaplaceTest | GaussianTest) -> dp.DpEvent:
    return dp.PoissonSampledDpEvent(RATE, ProposeTestReleaseDpEvent(NOISE, 0.5, test, 1e-8))


def epsilon(accountant: type[dp.PrivacyAccountant], event: dp.DpEvent) -> Answer:
    return lambda: accountant().compose(event, STEPS).get_epsilon(DELTA)


def our_noise(test: GaussianTest | None) -> Answer:
    run = Run(sampling_rate=RATE, steps=STEPS, test=test)
    return lambda: run.calibrate("noise_multiplier", epsilon=TARGET, delta=DELTA).noise_multiplier


def opacus_noise() -> float:
    from opacus.accountants.utils import get_noise_multiplier

    return get_noise_multiplier(
        target_epsilon=TARGET, target_delta=DELTA, sample_rate=RATE, steps=STEPS, accountant="prv"
    )


def contests() -> list[tuple[str, str, str, Answer, Answer]]:
    """Question, goal, the peer's name, our answer, the peer's."""
    laplace, normal = release(LaplaceTest(1.0)), release(GaussianTest(3.0))
    peer_rdp, peer_pld = epsilon(PeerRdpAccountant, gaussian()), epsilon(PLDAccountant, gaussian())
    peer = "dp_accounting, plain Gaussian"
    return [
        ("ε of PTR by RDP, Laplace test", "≤ 1.0", peer, epsilon(RdpAccountant, laplace), peer_rdp),
        ("ε of PTR by RDP, Gaussian test", "≤ 1.0", peer, epsilon(RdpAccountant, normal), peer_rdp),
        ("ε of PTR by PLD, Laplace test", "≤ 1.5", peer, epsilon(PldAccountant, laplace), peer_pld),
        ("ε of PTR by PLD, Gaussian test", "≤ 1.5", peer, epsilon(PldAccountant, normal), peer_pld),
        ("σ of PTR by PLD, Gaussian test", "< 1", "opacus PRV, plain Gaussian",
         our_noise(GaussianTest(3.0)), opacus_noise),
        ("σ of the plain Gaussian by PLD", "< 1", "opacus PRV, the same",
         our_noise(None), opacus_noise),
    ]  # fmt: skip


def hard_prices() -> list[tuple[str, Answer]]:
    """Questions, each asked once: later answers would be remembered ones."""
    test, small = GaussianTest(3.0), dp.PoissonSampledDpEvent(1e-5, dp.GaussianDpEvent(1.0))
    proposed = ProposeTestReleaseDpEvent(2.0, 0.5, LaplaceTest(4.0), 1e-13)
    laplace = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(10.0), 10)
    mixed = dp.ComposedDpEvent([dp.SelfComposedDpEvent(small, 10**6), laplace, proposed])
    sampled = dp.PoissonSampledDpEvent(RATE, ProposeTestReleaseDpEvent(NOISE, 0.5, test, 1e-12))
    eight = Relation(Adjacency.ADD_REMOVE, 8)

    certifier = Certifier(dp.SelfComposedDpEvent(small, 1000))

    return [
        ("ε at δ = 1e-12: 10⁶ sampled Gaussians, 10 Laplace, a PTR",
         lambda: PldAccountant().compose(mixed).get_epsilon(1e-12)),
        ("`Certifier.withstands`, q = 1e-5, T = 1,000", lambda: certifier.withstands(accuracy=0.9)),
        ("ε of 1,000 sampled PTR for 8 records of a person",
         lambda: epsilon_of(dp.SelfComposedDpEvent(sampled, 1000), DELTA, eight)),
    ]  # fmt: skip


def report_seconds() -> float:
    """Processor seconds of `prudent epsilon --event`, with the start of the process."""
    event = dp.ComposedDpEvent(
        [dp.SelfComposedDpEvent(release(LaplaceTest(1.0)), 100), dp.LaplaceDpEvent(10.0)]
    )
    with tempfile.TemporaryDirectory() as folder:
        file, before = Path(folder) / "event.json", sum(os.times()[2:4])
        file.write_text(to_json(event))
        command = [sys.executable, "-m", "prudent", "epsilon", f"--event={file}", "--delta=1e-6"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return sum(os.times()[2:4]) - before


def hard_table() -> list[str]:
    lines = ["| price | answer | processor seconds | goal |", "|---|---|---|---|"]
    for question, answer in hard_prices():
        start = time.process_time()
        value = answer()
        lines.append(f"| {question} | {value:.6g} | {time.process_time() - start:.2f} | < 2 |")
    return [
        *lines,
        f"| `prudent epsilon --event`, its start with it | | {report_seconds():.2f} | < 2 |",
    ]


def timed(answer: Answer) -> tuple[float, float]:
    start = time.perf_counter()
    value = answer()
    return time.perf_counter() - start, value


def import_seconds(rounds: int) -> float:
    """Median time of a fresh interpreter to `import prudent`, less that of an empty one."""

    def fresh(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    return statistics.median(fresh("import prudent") - fresh("pass") for _ in range(rounds))


def table(rounds: int) -> str:
    lines = [
        f"q = 256/60000, σ = {NOISE}, T = {STEPS:,}, δ = {DELTA:g}, δ₀ = 1e-8; σ solved for "
        f"ε = {TARGET:g}. Median of {rounds} rounds, both sides in turn.",
        "",
        "| question | answer | seconds | peer | its answer | its seconds | ratio | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for question, goal, peer, ours, theirs in contests():
        times = []
        for _ in range(rounds):
            (mine, answer), (other, reference) = timed(ours), timed(theirs)
            times.append((mine, other))
        ratio = statistics.median(mine / other for mine, other in times)
        mine, other = (statistics.median(column) for column in zip(*times, strict=True))
        lines.append(
            f"| {question} | {answer:.4f} | {mine:.3f} | {peer} | {reference:.4f} | {other:.3f} "
            f"| {ratio:.2f} | {goal} |"
        )
    lines += ["", *hard_table(), "", f"`import prudent`: {import_seconds(rounds):.3f} s."]
    return "\n".join(lines)


def write_section(text: str) -> None:
    """Replaces what lies between the markers of benchmarks/README.md, or appends it."""
    old = README.read_text() if README.exists() else "# Benchmarks\n"
    section = f"{BEGIN}\n{text}\n{END}"
    if BEGIN in old:
        before, rest = old.split(BEGIN, 1)
        new = before + section + rest.split(END, 1)[1]
    else:
        new = f"{old.rstrip()}\n\n## Accounting\n\n{section}\n"
    README.write_text(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    text = table(arguments.rounds)
    print(text)
    if arguments.write:
        write_section(text)


if __name__ == "__main__":
    main()
