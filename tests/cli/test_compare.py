"""`prudent compare`: errors to expect, as a table, as JSON and as a picture."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

pytest.importorskip("opendp", reason="needs pip install 'prudent[tables]'")

from prudent.cli import compare, errors
from prudent.release import comparison

Run = Callable[..., tuple[int, str, str]]
QUICK = ["--records", "2000", "--trials", "10"]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(compare.compare)
    command = typer.main.get_command(app)

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            status = command.main(args=list(arguments), standalone_mode=False)
        except Exception as error:
            status = errors.report(error, command)
        printed = capfd.readouterr()
        return (status if isinstance(status, int) else 0), printed.out, printed.err

    return call


def test_more_budget_means_less_error(run: Run) -> None:
    status, out, err = run("--shape", "normal", "--epsilons", "1,8", *QUICK, "--json")
    assert (status, err) == (0, "")
    rows = json.loads(out)
    assert [row["epsilon"] for row in rows] == [1.0, 8.0]
    assert rows[1]["tested"] < rows[0]["tested"]
    assert rows[1]["propose"] < rows[0]["propose"]
    assert set(rows[0]) == {"epsilon", "propose", "tested", "refused", "exponential"}


@pytest.mark.parametrize("shape", ["lognormal", "ties", "unbounded"])
def test_every_shape_is_answered(run: Run, shape: str) -> None:
    status, out, _ = run("--shape", shape, "--epsilons", "4", *QUICK, "--json")
    (row,) = json.loads(out)
    assert status == 0
    assert row["refused"] <= 0.5
    assert row["tested"] < 1.0


def test_the_exponential_mechanism_is_told_nothing_and_is_better(run: Run) -> None:
    status, out, _ = run("--shape", "normal", "--epsilons", "1", *QUICK, "--json")
    (row,) = json.loads(out)
    assert status == 0
    assert row["exponential"] < row["tested"]
    _, out, _ = run("--shape", "normal", "--epsilons", "4", "--propose", "1", *QUICK)
    assert "the exponential mechanism was told nothing" in " ".join(out.split())


def test_a_proposal_that_is_too_small_is_refused(run: Run) -> None:
    status, out, _ = run("--epsilons", "1", "--propose", "1e-6", *QUICK, "--json")
    (row,) = json.loads(out)
    assert status == 0
    assert (row["tested"], row["refused"]) == (None, 1.0)


@pytest.mark.parametrize("propose", ["0", "1e-9"])
def test_a_proposal_that_no_lattice_can_serve_is_bad_input(run: Run, propose: str) -> None:
    status, out, err = run("--epsilons", "1", "--propose", propose, *QUICK)
    assert (status, out) == (2, "")
    assert err.startswith("--propose: expected")
    with pytest.raises(ValueError, match="Expected propose"):
        comparison.compare_mechanisms(
            comparison.SHAPES["ties"],
            records=2_000,
            epsilons=[1.0],
            delta=1e-6,
            propose=float(propose),
            trials=1,
        )


@pytest.mark.unhurried
def test_a_table_and_a_picture(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "compare.png"
    status, out, _ = run("--epsilons", "1", "--propose", "1", *QUICK, "--out", str(picture))
    assert status == 0
    assert "error, exponential" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_public_data(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("ibis", reason="needs pip install 'prudent[tables]'")
    (tmp_path / "p.csv").write_text("x\n" + "\n".join(str(value) for value in range(100)))
    public = [str(tmp_path / "p.csv"), "--column", "x", "--epsilons", "4"]
    status, out, _ = run(*public, *QUICK, "--json")
    (row,) = json.loads(out)
    assert status == 0
    assert row["exponential"] < 10


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--shape", "round"], "--shape: expected one of lognormal, normal, ties, unbounded"),
        (["--epsilons", "1,x"], "--epsilons: expected a number, got 'x'"),
        (["--epsilons", "0"], "--epsilons: expected in [0.001, 50]"),
        (["--bounds", "0,9"], "No such option: --bounds"),
        (["--records", "0"], "--records: expected in [1, 1e+07]"),
        (["--trials", "0"], "--trials: expected in"),
        (["--seed", "-1"], "--seed: expected"),
        (["--propose", "-1"], "--propose: expected"),
        (["--delta", "2"], "--delta: expected"),
        (["--out", "a.txt"], "--out: expected one of"),
        (["--records", "10", "--epsilons", "0.1"], "No proposal passes"),
        (["nowhere.csv", "--column", "x"], "FILE: expected an existing file"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], line: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert line in err
