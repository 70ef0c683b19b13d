"""A few hundred inputs for the targets, and the proof that no command or reader is missing.

`make fuzz` runs many more: `PRUDENT_TEST_INPUTS` says how many for each target.
"""

import importlib
import os
import random
import re
from pathlib import Path

import hypothesis
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("torch", reason="most entries are about training")

from tests.cli.conftest import leaves
from tests.fuzz import commands, files
from tests.fuzz.judging import FindingError, is_chosen, judge
from tests.fuzz.mutation import mutated

QUICK = 0.3
"""Least weight of the targets that are tried here: the others take long."""

INPUTS = int(os.environ.get("PRUDENT_TEST_INPUTS", "0"))


def test_every_command_is_a_target() -> None:
    from prudent.cli import command_line

    every = set(leaves(command_line()))
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
        "certify/features/__init__.py",  # features network; comes with the package
        "prudent_lab/__init__.py",  # declarations; come with the package
        "prudent_lab/features/sentences.py",
        "certify/classifier.py",  # classifier
        "cli/answering.py",  # options
        "tune/saving.py",  # fit of a search
        "prudent_lab/commands/certify.py",  # landmarks
        "prudent_lab/commands/train.py",  # settings
        "prudent_lab/features/resnet.py",  # safetensors; comes with the package
        "prudent_lab/data_files.py",  # arrays that prudent wrote to the user's cache
        "prudent_lab/named_datasets.py",  # idx, cifar, reviews, census
        "cli/commands/pricing.py",  # event
        "prudent_lab/explore/__init__.py",  # comes with the package
        "prudent_lab/paper/report/page.py",  # comes with the package
        "prudent_lab/paper/results.py",  # results
        "prudent_lab/paper/jobs.py",  # comes with the package
        "budget/allowance.py",  # ledger rows, known ledgers
        "receipts/making.py",  # what pip wrote about the installed package
        "receipts/pages.py",  # the row of a receipt that was read
        "receipts/receipt.py",  # receipt
        "release/columns/sources.py",  # csv
        "training/run/checkpoint.py",  # checkpoint, paid
        "training/run/metrics.py",  # metrics
        "training/run/execution.py",  # reads what it wrote to memory
        "tune/candidate.py",  # search state, search result
        "tune/fitting.py",  # the model of the best candidate, as torch weights
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
@pytest.mark.usefixtures("deep_folder")
def test_files(target: files.Target) -> None:
    seeds, chance = target.seeds(), random.Random(INPUTS)
    assert target.judge(seeds[0]) is None, "the first seed is valid"
    for _ in range(INPUTS or (8 if target.weight >= QUICK else 1)):
        target.judge(mutated(seeds, chance))


@pytest.mark.thorough
@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda command: command.name)
@pytest.mark.usefixtures("deep_folder")
def test_commands(command: commands.Command) -> None:
    command.judge(commands._replaced(command.make(), ({0: "\x1b[2J'\""}, ())))
    if INPUTS:
        settings = hypothesis.settings(max_examples=INPUTS, database=None, deadline=None)
        settings(hypothesis.given(command.strategy())(command.judge))()


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


def test_a_price_that_is_too_low_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    import dp_accounting as dp

    from prudent.accounting import PldAccountant, to_json

    text = to_json(dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 3))
    files._price(text)
    monkeypatch.setattr(PldAccountant, "get_epsilon", lambda self, delta: 3.0)
    with pytest.raises(FindingError, match="priced at 3"):
        files._price(text)
