"""A few hundred inputs for the targets, and the proof that no public entry is missing among them.

`make fuzz` runs many more: see `tests/fuzz/__main__.py`.
"""

import importlib
import inspect
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("torch", reason="most entries are about training")

import prudent
from tests.fuzz import calls, commands, differences, files, surface
from tests.fuzz.judging import FindingError, is_chosen, judge
from tests.fuzz.mutation import mutated

QUICK = 0.3
"""Least weight of the targets that are tried here: the others take long."""


def test_every_public_name_is_a_target_or_excluded_with_a_reason() -> None:
    """Whoever adds a public name finds this test where a parameter has no value in `surface`."""
    for entry in surface.entries():
        for parameter in entry.parameters.values():
            surface.value(entry, parameter)
    named = {name for package in surface.packages() for name in package.__all__}
    known = {name.rpartition(".")[2] for name in surface.public()} | set(surface.EXCLUDED)
    missing = named - known - set(surface.optional())
    assert not {name for name in missing if not inspect.ismodule(getattr(prudent, name, None))}


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
@pytest.mark.usefixtures("deep_folder")
def test_right_arguments_are_answered(part: int) -> None:
    """What is replaced in a call is then the only thing that can be wrong with it."""
    refused = {}
    for entry in surface.entries()[part::4]:
        function, arguments = entry.make()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(**arguments)
        except Exception as error:
            refused[entry.name] = f"{type(error).__name__}: {error}"
    assert not refused


def test_every_command_is_a_target() -> None:
    from prudent.cli import command_line

    def words(command: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        inner = getattr(command, "commands", {})
        if not inner or getattr(command, "invoke_without_command", False):
            yield before
        for name, each in inner.items():
            yield from words(each, (*before, name))

    every = set(words(command_line())) - {()}
    known = {command.words for command in commands.COMMANDS}
    assert every - {("paper",)} == known | {tuple(name.split()) for name in commands.EXCLUDED}


def test_every_file_format_of_the_sources_is_a_target() -> None:
    """Whoever adds a reader of files finds this test, and adds a target."""
    packages = ("prudent", "prudent_lab", "prudent_verify")
    sources = [Path(str(importlib.import_module(each).__file__)).parent for each in packages]
    readers = re.compile(
        r"json\.loads?\(|tomllib\.|np\.load\(|read_array\(|torch\.load\(|load_file\(|csv\.\w*ead"
    )
    found = {
        path.relative_to(source.parent).as_posix().removeprefix("prudent/")
        for source in sources
        for path in source.rglob("*.py")
        if readers.search(path.read_text("utf-8"))
    }
    assert found == {
        "_formats.py",  # npz, by datasets, classifier and features
        "accounting/serialisation.py",  # event
        "certify/features/__init__.py",  # comes with the package
        "prudent_lab/features/sentences.py",
        "certify/known.py",  # classifier
        "cli/answering.py",  # options
        "tune/saving.py",  # fit of a search
        "prudent_lab/commands/certify.py",  # landmarks
        "prudent_lab/commands/train.py",  # settings
        "prudent_lab/features/resnet.py",  # safetensors, torch weights; comes with the package
        "prudent_lab/data_files.py",  # arrays that prudent wrote to the user's cache
        "prudent_lab/named_datasets.py",  # idx, cifar, reviews, census
        "records/quantized_cnn.py",  # features network
        "cli/event_report.py",  # event
        "prudent_lab/explore/__init__.py",  # comes with the package
        "prudent_lab/paper/report/page.py",  # comes with the package
        "prudent_lab/paper/results.py",  # results
        "prudent_lab/paper/jobs.py",  # comes with the package; grid
        "prudent_lab/paper/grid.py",  # written beside the results by the same run
        "budget/allowance.py",  # known ledgers
        "budget/charges.py",  # ledger rows
        "receipts/making.py",  # what pip wrote about the installed package
        "receipts/pages.py",  # the row of a receipt that was read
        "receipts/receipt.py",  # receipt
        "release/columns/sources.py",  # csv
        "training/run/checkpoint.py",  # checkpoint, paid
        "training/run/metrics.py",  # metrics
        "training/run/updates.py",  # reads what it wrote to memory
        "tune/candidate.py",  # search state, search result
        "tune/fitting.py",  # the model of the best candidate, as torch weights
        "tune/search_folder.py",  # search state, search result
        "tune/tuning.py",  # search state, search result
        "prudent_verify/checks.py",  # receipt
        "prudent_verify/receipt.py",  # receipt
    }


@pytest.fixture
def deep_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strange name may become that of a file; one with `..` stays inside the test's folder."""
    deep = tmp_path.joinpath(*"abcdefgh")
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)


@pytest.mark.thorough
@pytest.mark.parametrize("target", files.TARGETS, ids=lambda target: target.name)
def test_files(target: files.Target) -> None:
    seeds, chance = target.seeds(), random.Random(0)
    assert target.judge(seeds[0]) is None, "the first seed is valid"
    for _ in range(8 if target.weight >= QUICK else 1):
        target.judge(mutated(seeds, chance))


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(8))
@pytest.mark.usefixtures("deep_folder")
def test_calls(part: int) -> None:
    few = hypothesis.settings(max_examples=2, phases=[hypothesis.Phase.generate], database=None)
    for call in [each for each in calls.calls() if each.weight >= QUICK][part::8]:
        judge_call = call.judge

        @few
        @hypothesis.given(call.strategy())
        def run(replaced: dict[str, Any]) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                judge_call(replaced)  # noqa: B023 (it is run before the next one)

        run()


@pytest.mark.thorough
@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda command: command.name)
@pytest.mark.usefixtures("deep_folder")
def test_commands(command: commands.Command) -> None:
    right = list(command.make())
    command.judge(commands._replaced(right, ({0: "\x1b[2J'\""}, ())))


def test_a_difference_above_the_bound_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.differential.drawing import Case
    from tests.differential.entries import ENTRIES

    (entry,) = (each for each in ENTRIES if each.name == "fit, items")
    case = Case(entry.arranged("arrays and tensors"), entry.odd["longer"], 3)
    target = differences.DIFFERENCES[0]
    assert target.judge(case) is None
    entry.plant(monkeypatch)
    with pytest.raises(FindingError, match="more than 1"):
        target.judge(case)


def test_an_error_that_nobody_chose_is_a_finding() -> None:
    def of_python() -> None:
        int("x")

    def of_prudent() -> None:
        from prudent import _validate

        _validate.positive(x=-1)

    with pytest.raises(FindingError, match="invalid literal"):
        judge("t", "x", of_python)
    assert judge("t", "x", of_prudent) is not None
    assert not is_chosen(ValueError("never raised"))
    with pytest.raises(FindingError, match="TypeError"):
        judge("t", "x", lambda: len(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["count", "sql"])
def test_a_refusal_after_a_charge_is_a_finding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from prudent.release import request

    call = calls.named(f"release.{name}")
    assert call.judge({"noise": 7}) is not None
    monkeypatch.setattr(request, "source_of", lambda noise: noise)
    with pytest.raises(FindingError, match="after a charge"):
        call.judge({"noise": 7})


def test_a_price_that_is_too_low_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    import dp_accounting as dp

    from prudent.accounting import PldAccountant, to_json

    text = to_json(dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 3))
    files._price(text)
    monkeypatch.setattr(PldAccountant, "get_epsilon", lambda self, delta: 3.0)
    with pytest.raises(FindingError, match="priced at 3"):
        files._price(text)
