"""Hooks of mkdocs: the version in the header, and a page of every notebook in docs/tutorials.

The notebook, with its outputs, is the only source: what it printed and drew when `make tutorials`
last ran it is what the page shows. Nothing is run here, and the page needs no script of its own.
"""

import base64
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PICTURES = {"image/svg+xml": "svg", "image/png": "png"}  # the best first


class Page(NamedTuple):
    """A notebook as Markdown.

    Attributes:
        text: The Markdown.
        pictures: What it drew, by file name; the text refers to them.
    """

    text: str
    pictures: dict[str, bytes]


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Shows the version of the package behind the name of the site."""
    source = Path(config.config_file_path).parent / "src" / "prudent" / "__init__.py"
    if source.exists():
        found = re.search(r'^__version__ = "(.+)"', source.read_text("utf-8"), re.MULTILINE)
        config.site_name = f"{config.site_name} {found[1]}" if found else config.site_name
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Adds a page, and its pictures, for every notebook; the notebook itself can be downloaded."""
    from mkdocs.structure.files import File

    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = Path(notebook.src_uri)
        page = as_page(json.loads(notebook.content_string), path.stem)
        files.append(File.generated(config, str(path.with_suffix(".md")), content=page.text))
        for name, picture in page.pictures.items():
            files.append(File.generated(config, str(path.with_name(name)), content=picture))
    return files


def as_page(notebook: dict[str, Any], name: str) -> Page:
    """The page of a notebook, given as its JSON; `name` is that of its file, without an end."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(_code(source))
        printed = ""
        for output in cell["outputs"]:
            data = output.get("data", {})
            kind = next((kind for kind in PICTURES if kind in data), None)
            if kind is None:
                printed += _printed(output)
                continue
            file = f"{name}-{len(pictures) + 1}.{PICTURES[kind]}"
            picture = _text(data[kind])
            pictures[file] = base64.b64decode(picture) if kind == "image/png" else picture.encode()
            parts.append(f"![{cell['metadata'].get('alt', '')}]({file})")
        if printed:
            parts.append(_fenced("text", printed))
    parts.insert(1, f"[Download this page as a notebook]({name}.ipynb){{ download }}")
    return Page("\n\n".join(parts) + "\n", pictures)


def _code(source: str) -> str:
    """Code as a fenced block; a cell of shell commands, each after `!`, as a console."""
    lines = source.splitlines()
    if lines and lines[0].startswith("!"):
        return _fenced("console", "\n".join(line.replace("!", "$ ", 1) for line in lines))
    return _fenced("python", source)


def _printed(output: dict[str, Any]) -> str:
    """What an output says in plain text, ending in a line end."""
    text = _text(output["text"] if "text" in output else output["data"]["text/plain"])
    return text if text.endswith("\n") else text + "\n"


def _fenced(language: str, text: str) -> str:
    shown = text.strip("\n").rstrip()
    return f"```{language}\n{shown}\n```"


def _text(value: str | list[str]) -> str:
    """Notebooks keep a text as one string or as a list of its lines."""
    return value if isinstance(value, str) else "".join(value)
