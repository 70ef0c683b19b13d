"""`prudent explore`: a page with sliders, in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from prudent.cli import options
from prudent.cli.display import echo, echo_json, note


def explore(
    port: Annotated[int, options.whole_number("Where to listen; 0 picks a free port.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the page as one file instead, without a server."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    r"""Explore prices with sliders, in the browser.

    The page draws ε over the steps, the noise that a budget needs, the chance
    that a test passes, the error to expect of a table, and how many bad
    records a model withstands. It is served on this machine alone, needs no
    internet, and every number comes from the accountant that prices real
    releases.

    [b]Examples[/b]

    $ prudent explore

    One file to send or to put on a site, with numbers computed beforehand:
    $ prudent explore --export page.html
    """
    if export is not None:
        from prudent.lab.explore.grid import stored
        from prudent.lab.explore.page import page

        export.write_text(page(stored()), encoding="utf-8")
        if as_json:
            echo_json({"file": str(export)})
        else:
            echo(f"Wrote {export}.")
        return
    _serve(port, browser, as_json)


def _serve(port: int, browser: bool, as_json: bool) -> None:
    import webbrowser

    from prudent.lab.explore.server import HOST, serve

    with serve(port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        if as_json:
            echo_json({"address": address})
        else:
            echo(address)
        note("Ctrl-C ends it.")
        if browser:
            webbrowser.open(address)
        server.serve_forever()
