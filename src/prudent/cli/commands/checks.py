"""`prudent doctor`, `verify` and `keys`: checks of an installation and of receipts."""

import importlib
import math
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer

import prudent
from prudent import _extras, _files
from prudent._progress import track
from prudent.cli import needs, options
from prudent.cli.display import echo, echo_json, neutral, note, output_mode
from prudent.cli.errors import Fault, UncheckedError, print_error

_UNUSABLE = 2  # exit status of a file that is no receipt


class DoctorFinding(NamedTuple):
    """One line: what was looked at, whether it is right, and what was seen."""

    part: str
    state: Literal["ok", "missing", "wrong"]
    seen: str


def _state(right: object) -> Literal["ok", "wrong"]:
    return "ok" if right else "wrong"


_MARKS = {"ok": "✓", "missing": "–", "wrong": "✗"}


def doctor(as_json: options.Json = False) -> None:
    """Check this installation: versions, extras, GPU, data and prices.

    Prices are compared with numbers that are known. Ends with status 1 if
    anything is wrong; a part that is not installed is not wrong. With --quiet
    only what is wrong is printed.

    [b]Examples[/b]

    $ prudent doctor

    $ prudent doctor --json
    """
    shown = []
    wrong = False
    added = [needs.load_plugin("doctor", name) for name in needs.plugins("doctor")]
    for check in track([*_CHECKS, *added], "checks"):
        for finding in _made(check):
            wrong |= finding.state == "wrong"
            if output_mode().quiet and finding.state != "wrong":
                continue
            shown.append(finding)
            if not as_json:
                echo(f"{_MARKS[finding.state]} {finding.part}: {finding.seen}")
    if as_json:
        echo_json({"right": not wrong, "findings": [each._asdict() for each in shown]})
    if wrong:
        raise typer.Exit(1)


def _made(check: Callable[[], Iterator[DoctorFinding]]) -> Iterator[DoctorFinding]:
    """What a check finds; an error in it is a finding, too: no user data is open here."""
    name = check.__name__.strip("_").replace("_", " ")
    try:
        yield from check()
    except _extras.MissingPackageError as error:
        yield DoctorFinding(name, "missing", str(error))
    except Exception as error:
        yield DoctorFinding(name, "wrong", f"{type(error).__name__}: {error}")


def _versions() -> Iterator[DoctorFinding]:
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    supported = _state(sys.version_info >= (3, 11))
    yield DoctorFinding("prudent", supported, f"{prudent.__version__}, {python}")


def _installed() -> Iterator[DoctorFinding]:
    for extra in _extras.MODULES:
        part = f"extra {extra}" if extra else "core packages"
        try:
            _extras.check("this extra", [extra])
        except _extras.MissingPackageError as error:
            yield DoctorFinding(part, "missing" if extra else "wrong", str(error))
        else:
            names = (f"{name} {_extras.version(name)}" for name in _extras.packages(extra))
            yield DoctorFinding(part, "ok", ", ".join(names))


def _gpu() -> Iterator[DoctorFinding]:
    _extras.check("a GPU", ["train"])
    import torch

    if not torch.cuda.is_available():
        yield DoctorFinding("GPU", "missing", "none that torch can use; training runs on the CPU")
        return
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    yield DoctorFinding("GPU", "ok", f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB")


def _prices() -> Iterator[DoctorFinding]:
    from scipy import special

    from prudent.accounting import LaplaceTest, Reveals, Run

    run = Run(
        sampling_rate=256 / 60_000,
        steps=8_000,
        noise_multiplier=1.1,
        test=LaplaceTest(1.0),
        reveals=Reveals.MARGIN,
    )
    tested = run.epsilon(1e-5)
    right = _state(2.985 <= tested <= 2.987)
    yield DoctorFinding("price, 8,000 tested steps", right, f"ε = {tested:.4f} (known: 2.986)")
    one = Run(noise_multiplier=2.0)
    epsilon = one.epsilon(1e-6)
    # The exact profile of one Gaussian (Balle and Wang 2018).
    left = special.ndtr(0.25 - 2 * epsilon)
    delta = left - special.ndtr(-0.25 - 2 * epsilon) * math.exp(epsilon)
    exact = _state(0.98e-6 <= delta <= 1.0000001e-6)
    yield DoctorFinding(
        "price, one Gaussian", exact, f"ε = {epsilon:.4f}; its profile has δ = {delta:.3g}"
    )


_CHECKS = (_versions, _installed, _gpu, _prices)


def keys(
    make: str | None = options.value(
        "NAME",
        "Make a key first; its secret part stays on this machine.",
        default=None,
    ),
    as_json: options.Json = False,
) -> None:
    """Show the public part of every key that signs receipts, to hand to those who check them.

    Keys are Ed25519. The secret part of a new one is readable by you alone: whoever has it signs as
    you.

    [b]Examples[/b]

    $ prudent keys --make research

    $ prudent keys
    """
    from prudent.receipts import keys as kept

    if make is not None:
        kept.make(make)
        note(f"The secret part is in {kept.folder() / make}.key: whoever has it signs as you.")
    if as_json:
        echo_json({"keys": kept.public_keys()})
        return
    for name, public in kept.public_keys().items():
        echo(f"{public}  {name}")


def verify(
    receipt: Path = typer.Argument(metavar="RECEIPT", help="What --receipt wrote."),
    signer: str | None = options.value(
        "PUBKEY", "Whose signature it must have: a public key.", default=None
    ),
    head: str | None = options.value(
        "HASH", "The digest of the ledger, from its keeper.", default=None
    ),
    checklist: Path | None = options.value(
        "FILE",
        "Also write a checklist after NIST SP 800-226, filled as far as the receipt goes.",
        default=None,
    ),
    export: Path | None = options.value(
        "FILE",
        "Also write the fields of public registries of deployments, as JSON.",
        default=None,
    ),
    as_json: options.Json = False,
) -> None:
    """Check a receipt, offline: its price, certificate, digests, ledger rows and signature.

    The price is re-derived by ball arithmetic, in code that shares nothing with the accountant.
    It ends with status 0 if the receipt is verified, with 1 if a claim is refuted, with 2 if the
    file is none, or a claim that matters could not be checked, with 3 if the check itself failed,
    and with 4 if the claimed ε is between proved bounds, and not itself proved. A description of a
    run made elsewhere is checked the same way.

    [b]Example[/b]

    $ prudent verify answer.json --signer 3f0a…
    """
    from prudent.receipts import keys as kept
    from prudent.receipts import pages
    from prudent.receipts.receipt import Receipt

    check = checker()
    key = None if signer is None else kept.public_key(signer)
    try:
        found = check.verify(receipt, signer=key, head=head)
    except check.ReceiptError as error:
        print_error(Fault(str(error), status=_UNUSABLE))
        raise typer.Exit(_UNUSABLE) from None
    except OSError:
        raise
    except Exception as error:
        text = "Could not check the receipt, by a bug of this program: nothing is said about it."
        raise UncheckedError(text) from error
    if as_json:
        echo_json(found.plain())
    else:
        for line in found.lines():
            echo(neutral(line))
    for place, form in ((checklist, pages.checklist), (export, pages.registry)):
        if place is not None:
            with _files.replacing(place) as file:
                file.write(form(Receipt.read(receipt)[0], found.summary))
    if found.status:
        raise typer.Exit(found.status)


def checker() -> Any:
    """The package prudent-verify, which shares nothing with this one.

    Raises:
        MissingPackageError: If it is not installed.
    """
    try:
        return importlib.import_module("prudent_verify")
    except ModuleNotFoundError as error:
        name = "prudent-verify" if error.name == "prudent_verify" else str(error.name)
        raise _extras.MissingPackageError("prudent verify", [name], []) from error
