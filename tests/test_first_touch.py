"""The first steps on a fresh machine: what is read off a page, and that a failure is one."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
FENCE = "```"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_touch", ROOT / ".ci" / "first_touch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIRST_TOUCH = load()


def test_commands_are_told_from_what_they_print() -> None:
    shown = "$ prudent release median t.parquet \\\n    --column x\n51767.9 (…)\n$ ls\nt.parquet\n"
    assert FIRST_TOUCH.commands(shown) == [
        "prudent release median t.parquet \\\n    --column x",
        "ls",
    ]
    assert FIRST_TOUCH.commands("make demo    # all\n\nmake test\n") == [
        "make demo    # all",
        "make test",
    ]


def test_every_block_of_the_pages_is_found() -> None:
    for name in FIRST_TOUCH.PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        kinds = [block.kind for block in FIRST_TOUCH.blocks(page)]
        assert len(kinds) == page.count(f"{FENCE}console") + page.count(f"{FENCE}python")
        assert kinds
        assert "not run" not in page  # what cannot run may not be on these pages


def test_the_two_commands_for_a_fresh_machine_come_first() -> None:
    first = FIRST_TOUCH.blocks((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    told = [each.partition("#")[0].strip() for each in FIRST_TOUCH.commands(first.text)]
    assert told == ["make demo", "make test"]


@pytest.mark.parametrize("name", FIRST_TOUCH.PAGES)
def test_every_command_of_a_page_is_run(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    told = [
        command.partition("  #")[0].strip()
        for block in FIRST_TOUCH.blocks(page)
        if block.kind == "console"
        for command in FIRST_TOUCH.commands(block.text)
    ]
    told += [cell.strip("`") for cell in FIRST_TOUCH.first_commands(page) if cell[0] == "`"]
    assert told
    run = re.findall(
        r"^time \{ (.*?)\n\}$", FIRST_TOUCH.script(name, page), re.MULTILINE | re.DOTALL
    )
    assert run.count("python page.py") == 1
    run.remove("python page.py")
    assert run == told


def test_what_is_not_a_command_in_the_first_table_leads_to_a_block_of_the_page() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = FIRST_TOUCH.first_commands(page)
    assert len(cells) == 6
    anchors = {
        "#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"): page[place:]
        for title, place in (
            (each[1], each.end()) for each in re.finditer(r"^#+ (.+)$", page, re.M)
        )
    }
    for cell in cells:
        if not re.fullmatch("`prudent [^`]+`", cell):
            anchor = re.fullmatch(r"\[[^\]]+\]\((#[^)]+)\)", cell)
            assert anchor, cell
            section = re.split(r"^#+ ", anchors[anchor[1]], maxsplit=1, flags=re.M)[0]
            assert f"{FENCE}python" in section, cell


def page(*bodies: tuple[str, str]) -> str:
    return "text\n\n".join(f"{FENCE}{kind}\n{body}{FENCE}\n" for kind, body in bodies)


@pytest.mark.parametrize(
    ("bodies", "fails"),
    [
        ([("console", "$ value=3\n$ test $value = 3\nprinted\n")], False),
        ([("console", "false\n"), ("console", "touch late\n")], True),
        ([("console", "$ false | cat\n")], True),
        ([("console", '$ python() { python3 "$@"; }\n'), ("python", "x = 1\n")], False),
        ([("console", '$ python() { python3 "$@"; }\n'), ("python", "1 / 0\n")], True),
        (
            [
                ("console", '$ python() { python3 "$@"; }\n'),
                ("python", "x = 'it''s'\n"),
                ("python", "assert x == 'it''s', x\nassert x is None\n"),
            ],
            True,
        ),
    ],
)
def test_a_page_fails_where_its_reader_would(
    bodies: list[tuple[str, str]], fails: bool, tmp_path: Path
) -> None:
    status = FIRST_TOUCH.follow("page.md", page(*bodies), tmp_path, tmp_path)
    assert (status != 0) == fails
    assert not (tmp_path / "late").exists()
