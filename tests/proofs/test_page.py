"""The page on proofs names theorems and functions that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "proofs.md").read_text("utf-8")
PYTHON = sorted(set(re.findall(r"`(prudent\.[\w.]+)`", PAGE)))
COQ = sorted(set(re.findall(r"`([A-Z]\w+\.[\w']+)`", PAGE)))
CLAIM = r"^(?:Theorem|Lemma|Corollary|Example)\s+{}(?![\w'])"


def test_every_theorem_of_the_page_exists() -> None:
    sources = {file.stem: file.read_text("utf-8") for file in (ROOT / "proofs").glob("*.v")}
    assert len(COQ) > 40
    for name in COQ:
        file, claim = name.split(".")
        assert re.search(CLAIM.format(re.escape(claim)), sources[file], re.MULTILINE), name


def test_every_function_of_the_page_exists() -> None:
    """Read from the source, which takes no import of torch."""
    assert len(PYTHON) > 20
    for name in PYTHON:
        module, _, attribute = name.rpartition(".")
        file = ROOT / "src" / Path(*module.split(".")).with_suffix(".py")
        defined = {getattr(node, "name", None) for node in ast.parse(file.read_text("utf-8")).body}
        assert attribute in defined, name


def test_every_theorem_is_on_the_page() -> None:
    """Lemmas may be left out."""
    for file in sorted((ROOT / "proofs").glob("*.v")):
        for claim in re.findall(r"^Theorem\s+([\w']+)", file.read_text("utf-8"), re.MULTILINE):
            assert f"`{file.stem}.{claim}`" in PAGE, f"{file.stem}.{claim} is not in docs/proofs.md"


def test_a_missing_theorem_is_seen() -> None:
    assert not re.search(CLAIM.format("half"), "Theorem half_a_record steps :", re.MULTILINE)
