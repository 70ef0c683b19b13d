"""The version is the same wherever it is said, and what a maintainer reads names what exists."""

import re
from pathlib import Path

import pytest

import prudent

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "prudent"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def releases(changelog: str) -> list[tuple[str, str]]:
    """Version and date of each release in a changelog, newest first."""
    first, *others = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    assert first == "Unreleased"  # where the next change is told
    return [re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", title).groups() for title in others]  # type: ignore[misc, union-attr]


def cited(citation: str) -> tuple[str, ...]:
    """Version and date of a citation file."""
    return tuple(
        re.search(rf"^{field}: (\S+)$", citation, re.MULTILINE)[1]  # type: ignore[index]
        for field in ("version", "date-released")
    )


def test_changelog_citation_and_package_have_one_version() -> None:
    version, date = releases(read("CHANGELOG.md"))[0]
    assert version == prudent.__version__
    assert cited(read("CITATION.cff")) == (version, date)


def test_another_version_or_date_would_be_noticed() -> None:
    assert releases("## Unreleased\n\n## 0.2.0 (2027-01-01)\n") == [("0.2.0", "2027-01-01")]
    assert cited("version: 0.2.0\ndate-released: 2027-01-01\n") == ("0.2.0", "2027-01-01")
    with pytest.raises(AssertionError):
        releases("## 0.2.0 (2027-01-01)\n")


def test_the_oldest_torch_that_is_declared_is_the_one_that_is_tested() -> None:
    """It was declared and never tried: the package could not be imported with it."""
    declared = re.search(r'"torch>=([\d.]+)"', read("pyproject.toml"))[1]  # type: ignore[index]
    tested = re.search(r"^torch==([\d.]+)$", read("constraints-oldest-torch.txt"), re.MULTILINE)
    assert tested is not None
    assert tested[1] == f"{declared}.0"
    assert "make test-oldest-torch" in read(".github/workflows/ci.yml")


# --- names --------------------------------------------------------------------------------------


def missing(page: str) -> list[str]:
    """What a page names and the repository does not hold: files, folders and targets of make."""
    told = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    block = re.findall(r"^((?:src|tests|docs|benchmarks)/\S*)", page, re.MULTILINE)
    absent = []
    for words in (*told, *block):
        name = words.split()[0]
        if name == "make":
            absent += [words] if f"\n{words.split()[1]}:" not in read("Makefile") else []
        elif re.fullmatch(r"[\w./-]+(/|\.(py|pyi|md|toml|yml|cff|txt))", name):
            homes = (ROOT, PACKAGE, ROOT / "tests", *PACKAGE.iterdir(), ROOT / "tests" / "fuzz")
            made = ("build/", "dist/", "site/")  # by commands
            if not name.startswith(made) and not any((home / name).exists() for home in homes):
                absent.append(words)
    return absent


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "SECURITY.md"])
def test_a_page_for_maintainers_names_only_what_exists(page: str) -> None:
    assert missing(read(page)) == []


def test_what_does_not_exist_is_found() -> None:
    page = "`make nothing`, `tests/no_such.py`, `attic/`, `training/`, `make test X=1`\n"
    assert missing(page + "src/prudent/attic/   a room\n") == [
        *("make nothing", "tests/no_such.py", "attic/", "src/prudent/attic/"),
    ]


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    drawn = re.findall(r"^\| `(\w+)` \|", read("docs/architecture.md"), re.MULTILINE)
    laid_out = re.findall(r"^src/prudent/(\w+)/", read("CONTRIBUTING.md"), re.MULTILINE)
    assert rooms == set(drawn) == set(laid_out)
