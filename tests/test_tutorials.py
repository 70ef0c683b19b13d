"""The notebooks of docs/tutorials: complete as committed, and each runs from its first cell.

Running them takes minutes and needs Jupyter: `make test-tutorials`. The other tests read the files.
"""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOKS = {path.stem: path for path in sorted((DOCS / "tutorials").glob("*.ipynb"))}

# What names the machine on which a notebook was run.
ABSOLUTE_PATH = re.compile(
    r"(?<![\w.:/])/(?:home|root|tmp|Users|usr|var|work|private|opt)/|[A-Z]:\\\\"
)
ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}>")
ESCAPE = "\x1b"  # the colours of a terminal


def script(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults(notebook: dict[str, Any]) -> list[str]:
    """What is wrong with a notebook as it is committed."""
    found = []
    cells = notebook["cells"]
    first = "".join(cells[0]["source"])
    if cells[0]["cell_type"] != "markdown" or not first.startswith("# "):
        found.append("does not begin with a title")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        found.append("was not run from its first cell to its last")
    if not any(cell["outputs"] for cell in code):
        found.append("has no output")
    for cell in code:
        where = f"cell {cell['execution_count']}"
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                found.append(f"{where}: ends with an error")
            if output.get("name") == "stderr":
                found.append(f"{where}: prints to stderr")
            if any(kind.startswith("image/") for kind in output.get("data", {})):
                if not cell["metadata"].get("alt"):
                    found.append(f"{where}: its picture has no text for those who cannot see it")
                continue
            printed = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
            if ESCAPE in printed:
                found.append(f"{where}: prints colours")
            if ADDRESS.search(printed):
                found.append(f"{where}: prints where an object lies in memory")
    if ABSOLUTE_PATH.search(json.dumps(notebook, ensure_ascii=False)):
        found.append("holds the path of a file on one machine")
    if set(notebook["metadata"]) - {"kernelspec", "language_info"}:
        found.append("says which editor wrote it")
    return found


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_complete_as_committed(name: str) -> None:
    assert faults(json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_in_the_navigation_and_in_the_list(name: str) -> None:
    assert f"tutorials/{name}.md" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"({name}.md)" in (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")


def markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": [text]}


def code(source: str, *outputs: dict[str, Any], count: int = 1, **metadata: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": count,
        "metadata": metadata,
        "outputs": list(outputs),
        "source": source.splitlines(keepends=True),
    }


def notebook(*cells: dict[str, Any]) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


TITLE = markdown("# A title")
PRINTED = {"output_type": "stream", "name": "stdout", "text": ["2\n"]}
SVG = {"output_type": "display_data", "data": {"image/svg+xml": ["<svg/>"], "text/plain": ["F"]}}
PNG = {"output_type": "display_data", "data": {"image/png": "aGk=\n", "text/plain": ["F"]}}


def test_a_good_notebook_has_no_faults() -> None:
    assert faults(notebook(TITLE, code("1 + 1", PRINTED), code("f", SVG, count=2, alt="F"))) == []


def test_a_fault_is_found() -> None:
    assert "title" in faults(notebook(markdown("text"), code("1", PRINTED)))[0]
    assert "path" in faults(notebook(TITLE, code("1", PRINTED | {"text": ["in /home/me/x.py"]})))[0]
    assert "cannot see" in faults(notebook(TITLE, code("1", SVG)))[0]


def test_a_page_shows_text_code_outputs_and_pictures_in_their_order() -> None:
    value = {"output_type": "execute_result", "data": {"text/plain": ["3"], "text/html": "<b>3"}}
    page = script("notebook_pages").as_page(
        notebook(
            TITLE,
            code("print(2)\n3", PRINTED, value),
            code("!prudent \\\n  --version"),
            code("draw()", SVG, PNG, alt="A line"),
        ),
        "name",
    )
    assert page.text == (
        "# A title\n\n"
        "[Download this page as a notebook](name.ipynb){ download }\n\n"
        "```python\nprint(2)\n3\n```\n\n"
        "```text\n2\n3\n```\n\n"
        "```console\n$ prudent \\\n  --version\n```\n\n"
        "```python\ndraw()\n```\n\n"
        "![A line](name-1.svg)\n\n![A line](name-2.png)\n"
    )
    assert page.pictures == {"name-1.svg": b"<svg/>", "name-2.png": b"hi"}


@pytest.mark.tutorials
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str) -> None:
    ran = script("run_tutorials").run(NOTEBOOKS[name])
    assert faults(ran) == []
