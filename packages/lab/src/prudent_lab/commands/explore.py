"""`prudent explore`: a page with sliders, in the browser."""

import tempfile
import webbrowser
from pathlib import Path

import typer

from prudent.cli import options
from prudent.cli.display import show_files


def explore(
    browser: bool = typer.Option(True, help="Open the page in the browser."),
    export: Path | None = options.value(
        "FILE", "Write the page to this file, and open no browser.", default=None
    ),
    as_json: options.Json = False,
) -> None:
    r"""Explore prices with sliders, in the browser.

    The page draws ε over the steps, the noise that a budget needs, the chance
    that a test passes, the error to expect of a table, and how many bad
    records a model withstands. It is one file that needs no internet, and
    every number on it comes from the accountant that prices real releases.

    [b]Examples[/b]

    $ prudent explore

    One file to send or to put on a site:
    $ prudent explore --export page.html
    """
    from prudent_lab.explore import page

    path = Path(tempfile.mkdtemp()) / "explore.html" if export is None else export
    path.write_text(page(), encoding="utf-8")
    show_files([path], as_json=as_json)
    if browser and export is None:
        webbrowser.open(path.as_uri())
