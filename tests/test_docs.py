"""The Python on the pages runs as it is printed: page by page, in an empty folder.

Blocks of one page share their names, as a reader's session would. What a page takes for granted,
such as `salaries.parquet`, is written here. A block that cannot run here says so in the page, right
above it: `<!-- not run: needs a GPU -->`; it is skipped with that reason, never silently.
"""

import re
import shlex
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer

import prudent
from prudent import samples
from prudent.cli import command_line

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
}

NAMING = PAGES | {name: ROOT / name for name in ("CONTRIBUTING.md", "benchmarks/README.md")}

_BLOCK = re.compile(
    r"(?:^[ \t]*<!-- not run: (?P<reason>.+?) -->[ \t]*\n(?:[ \t]*\n)*)?"
    r"^(?P<indent>[ \t]*)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    line: int
    code: str
    reason: str | None


def blocks(text: str) -> list[Block]:
    """The fenced Python of a page, with the number of its first line."""
    return [
        Block(
            text.count("\n", 0, match.start("code")) + 1,
            textwrap.dedent(match["code"]),
            match["reason"],
        )
        for match in _BLOCK.finditer(text)
    ]


def salaries() -> dict[str, Any]:
    """`salaries.parquet`, which ships, and a frame in which an employee has two rows."""
    pandas = pytest.importorskip("pandas", reason="frames need pandas")
    pytest.importorskip("ibis", reason="tables need the extra `tables`")
    draw = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "salary": draw.normal(52_000.0, 9_000.0, 5_000),
            "employee": np.arange(5_000) // 2,
            "city": draw.choice(["Oslo", "Bergen", "Tromsø"], 5_000),
        }
    )
    samples.write("salaries")
    return {"frame": frame}


def learning() -> dict[str, Any]:
    pytest.importorskip("torch", reason="training needs the extra `train`")
    return {}


def modelling() -> dict[str, Any]:
    pytest.importorskip("sklearn", reason="needs the extra `estimators`")
    return salaries()


def huggingface() -> dict[str, Any]:
    pytest.importorskip("transformers", reason="needs the extra `huggingface`")
    pytest.importorskip("peft", reason="needs the extra `huggingface`")
    return {}


def lightning() -> dict[str, Any]:
    pytest.importorskip("lightning", reason="needs the extra `lightning`")
    warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec", FutureWarning)  # Lightning
    warnings.filterwarnings("ignore", ".* does not have many workers")
    return {}


def flower() -> dict[str, Any]:
    pytest.importorskip("flwr", reason="needs the extra `federated`")
    return {}


GRANTED: dict[str, Callable[[], dict[str, Any]]] = {
    "README.md": learning,
    "docs/index.md": lambda: learning() | salaries(),
    "docs/scaling.md": lambda: learning() | salaries(),
    "docs/synth.md": modelling,
    "docs/tables-sql.md": salaries,
    "docs/tables.md": salaries,
    "docs/training-runs.md": learning,
    "docs/training.md": learning,
    "docs/certify.md": learning,
    "docs/estimators.md": modelling,
    "docs/extending.md": lambda: learning() | salaries(),
    "docs/recipes.md": learning,
    "docs/opacus.md": learning,
    "docs/huggingface.md": lambda: huggingface() | lightning(),
    "docs/federated.md": flower,
}


BLOCKS = [(name, block) for name, path in PAGES.items() for block in blocks(path.read_text())]
RUN = sorted(
    {name for name, block in BLOCKS if not block.reason},
    key=lambda name: (name != "docs/budget.md", name),
)
"""`make test` runs the first of them: one that takes little time, and more than one block."""
FOLLOWED = {"README.md": pytest.mark.slow}  # CI begins with it, on a fresh clone


@pytest.mark.unhurried
@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("page", [pytest.param(page, marks=FOLLOWED.get(page, ())) for page in RUN])
def test_the_code_on_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRUDENT_DATA", str(ROOT / "data"))
    names = {"__name__": "__page__", **GRANTED.get(page, dict)()}
    for name, block in BLOCKS:
        if name == page and not block.reason:
            padding = "\n" * (block.line - 1)  # so that an error names the line of the page
            exec(compile(padding + block.code, PAGES[page], "exec"), names)


@pytest.mark.slow
def test_the_script_for_many_processes_runs_in_two(tmp_path: Path) -> None:
    learning()
    (code,) = [block.code for _, block in BLOCKS if block.code.startswith("# train.py")]
    (tmp_path / "train.py").write_text(code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "train.py"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)


@pytest.mark.parametrize(
    ("page", "block"),
    [(name, block) for name, block in BLOCKS if block.reason],
    ids=lambda part: part if isinstance(part, str) else f"line {part.line}",
)
def test_the_code_that_is_not_run_compiles(page: str, block: Block) -> None:
    compile(block.code, PAGES[page], "exec")
    pytest.skip(f"{page}, line {block.line}: {block.reason}")


def test_every_fence_of_python_is_found() -> None:
    """A fence that the pattern misses would be skipped silently."""
    for name, path in PAGES.items():
        text = path.read_text()
        assert len(blocks(text)) == len(re.findall(r"^\s*```\s*(?:python|py)\b", text, re.M)), name


def test_the_reference_says_of_every_name_how_stable_it_is() -> None:
    """Of the names of `prudent` itself one by one, of others by their packages."""
    text = (ROOT / "docs" / "api" / "index.md").read_text()
    above, _, below = text.partition("## Stable and provisional")
    packages = {each.parent.name for each in Path(prudent.__file__).parent.glob("*/__init__.py")}
    table = re.findall(r"\[`(\w+)`\]", "".join(re.findall(r"^\|.*$", above, re.MULTILINE)))
    (line,) = re.findall(r"^Provisional in `prudent` itself: .*$", above, re.MULTILINE)
    told = [*table, *re.findall(r"\[`(\w+)`\]", line)]
    assert sorted(told) == sorted(set(prudent.__all__) - packages - {"__version__"})
    assert 40 <= len(table) <= 50
    tiers = dict(re.findall(r"^\| (stable|provisional|lab) \| (.+) \| .+ \|$", below, re.MULTILINE))
    assert len(tiers) == 3
    named = re.findall(r"`(prudent[\w.]*)`", " ".join(tiers.values()))
    public = {f"prudent.{name}" for name in packages if not name.startswith("_")}
    assert sorted(named) == sorted(public | {"prudent_lab", "prudent_verify"})


def test_what_the_text_tells_to_import_exists() -> None:
    """Of packages, by their folders: some need extras to be imported."""
    homes = [ROOT / "src", ROOT / "packages/lab/src", ROOT / "packages/verify/src"]
    for name, path in PAGES.items():
        for module, part in re.findall(r"`from (prudent[\w.]*) import (\w+)`", path.read_text()):
            assert any(home.joinpath(*module.split("."), part).is_dir() for home in homes), name


def test_files_that_are_named_exist() -> None:
    """Those of the package by their place in it, as in `release/noise.py`."""
    places = (ROOT, Path(prudent.__file__).parent, ROOT / "packages/lab/src/prudent_lab")
    for name, path in NAMING.items():
        for file in re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|md|v))`", path.read_text()):
            assert any((place / file).exists() for place in places), (name, file)


def absent_tests(text: str) -> set[str]:
    """The tests that a text names and no file of tests defines."""
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("packages/*/tests/**/*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    found = set(re.findall(r"^\s*(?:def|class) (\w+)", code, re.MULTILINE))
    return set(re.findall(r"`(test_\w+|Test[A-Z]\w+)`", text)) - found


def test_tests_that_are_named_exist() -> None:
    """As in the table of faults, where a test stands behind each statement."""
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    assert page.count("`test_") >= 8
    assert absent_tests(page) == set()
    assert absent_tests("`test_that_nobody_wrote`") == {"test_that_nobody_wrote"}


def test_commands_are_those_of_the_command_line() -> None:
    """With flags that they have."""
    lines = (
        (name, line.strip().removeprefix("$ "))
        for name, path in NAMING.items()
        for block in re.findall(r"```\w*\n(.*?)```|`(prudent [^`]+)`", path.read_text(), re.DOTALL)
        for line in "".join(block).replace("\\\n", " ").splitlines()
    )
    tried = 0
    for name, line in lines:
        if not line.startswith("prudent ") or "…" in line or re.search(r"\bCOMMAND\b", line):
            continue
        command, words = command_line(), shlex.split(line, comments=True)[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        parameters = command.get_params(typer.Context(command))
        taken = {flag for each in parameters for flag in (*each.opts, *each.secondary_opts)}
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags <= taken, (name, line)
        assert not hasattr(command, "commands") or not words or flags, (name, line)
        tried += 1
    assert tried > 100


def words(text: str) -> int:
    """How many words, which have a letter or a digit: no rules or corners of tables."""
    return sum(any(map(str.isalnum, each)) for each in text.split())


def test_pages_stay_short() -> None:
    """A page that grows is to be cut, or divided; only errata may be long."""
    found = {name: words(path.read_text()) for name, path in NAMING.items()}
    docs = {name: count for name, count in found.items() if name.startswith("docs/")}
    assert {name for name, count in docs.items() if count > 2_500} == {"docs/errata.md"}
    assert sum(docs.values()) <= 36_000
    assert len(docs) <= 36
    assert found["benchmarks/README.md"] <= 6_000
    assert words("| a | **b1** |\n|---|---:|") == 2


def test_a_reason_belongs_to_the_block_below_it() -> None:
    fence = "```"
    page = f"""
    {fence}python
    one = 1
    {fence}

<!-- not run: needs a GPU -->
{fence}python
two = 2
{fence}
text
{fence}console
$ three
{fence}
"""
    assert blocks(page) == [Block(3, "one = 1\n", None), Block(8, "two = 2\n", "needs a GPU")]
