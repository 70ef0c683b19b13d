"""Runs the notebooks in docs/tutorials anew and writes what they print and draw into them.

    python docs/run_tutorials.py [NAME ...]     # `make tutorials` runs them all

Each runs in an empty temporary folder, so that it neither depends on what lies around nor leaves
anything behind.
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
TUTORIALS = HERE / "tutorials"
ENVIRONMENT = {
    "MATPLOTLIBRC": str(HERE / "matplotlibrc"),
    # What commands print is put on a page: no colours, no bars that overwrite themselves.
    "TTY_COMPATIBLE": "0",
    "COLUMNS": "96",
}
KERNEL = (
    "--log-level=ERROR",
    "--IPKernelApp.capture_fd_output=False",  # its thread may outlive the loop it writes to
    "--InlineBackend.figure_formats=svg",
    "--InlineBackend.print_figure_kwargs={'bbox_inches': 'tight', 'metadata': {'Date': None}}",
)
LINE_END = re.compile(r"[ \t]*\r?\n")  # of a table in a terminal: padded, and with a return
LIMIT = 300  # seconds for one cell: a hanging cell must end


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook at `path` with the outputs of a run just made.

    Raises:
        CellExecutionError: A cell raised an exception.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=LIMIT,
            record_timing=False,
            coalesce_streams=True,
            extra_arguments=list(KERNEL),
            resources={"metadata": {"path": folder}},
        ).execute(env=os.environ | ENVIRONMENT)
    notebook.metadata["language_info"] = {"name": "python"}  # the kernel adds its version
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text" in output:  # commands print as to a terminal
                output.text = LINE_END.sub("\n", output.text)
    return notebook


def main(names: list[str]) -> None:
    """Runs the named notebooks, or all, and writes each back when all of its cells have run."""
    paths = [TUTORIALS / f"{name}.ipynb" for name in names] or sorted(TUTORIALS.glob("*.ipynb"))
    for number, path in enumerate(paths, 1):
        print(f"[{number}/{len(paths)}] {path.stem} …", end=" ", flush=True)
        start = time.perf_counter()
        notebook = run(path)
        nbformat.write(notebook, path)
        print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
