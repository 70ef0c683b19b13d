"""`prudent certify DIR`: what is read from a run's folder, printed and refused."""

import functools
import json
import re

import attrs
import pytest

from prudent import LaplaceTest, Plan, ProposeTestRelease, Sum
from prudent._rounding import rounded_up
from prudent.accounting import REPLACE_ONE
from prudent.accounting.robustness import mean_at_least
from prudent.cli import main
from prudent.training.run.checkpoint import record_paid
from prudent.training.run.metrics import Metrics, Recorder

PLAN = Plan(sampling_rate=0.05, steps=30, aggregation=Sum(clip=1.0, noise_multiplier=4.0))
PTR = attrs.evolve(
    PLAN,
    aggregation=ProposeTestRelease(
        clip=1.0, noise_multiplier=4.0, propose=0.5, test=LaplaceTest(8.0)
    ),
)


def certify(capsys, *arguments):
    """Runs the command; returns its status and the two streams."""
    status = main(["certify", *map(str, arguments)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


@functools.cache
def epsilon_at(plan, step):
    return plan.epsilon_after(step, 1e-5)


def written(folder, accuracy=0.9, plan=PLAN, **changes):
    """A folder as `fit` leaves it, with two evaluations."""
    folder.mkdir()
    record_paid(folder, plan, plan.steps)
    with Recorder(folder, 0, plan.steps, progress=False) as recorder:
        for step, value in ((10, 0.2), (30, accuracy)):
            entry = Metrics(
                step=step,
                epsilon=epsilon_at(plan, step),
                delta=1e-5,
                relation=str(plan.relation),
                pass_rate=0.0,
                trim=0,
                noise=1.0,
                evaluation={"accuracy": value},
            )
            recorder.record(attrs.evolve(entry, **changes))
    return folder


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("plan", "method"), [(PLAN, "exact for k records"), (PTR, "group privacy")]
)
def test_one_run_is_certified_on_a_condition(capsys, tmp_path, plan, method):
    folder = written(tmp_path / "run", 0.9, plan)
    status, out, err = certify(capsys, folder, "--records", "0, 3", "--above", "0.5", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    known = plan.certificate(accuracy=0.9, records=3)
    assert found["certificates"] == [
        {"records": 0, "at_least": 0.9},
        {"records": 3, "at_least": known.at_least},
    ]
    assert (found["accuracy"], found["expected"], found["runs"]) == (0.9, 0.9, 1)
    assert found["expected_is_assumed"] is True
    assert (found["confidence"], found["method"]) == (None, method)
    assert (found["relation"], found["delta"]) == ("zero-out", 1e-5)
    assert found["epsilon"] == epsilon_at(plan, plan.steps)
    assert found["withstands"] == {"above": 0.5, "records": plan.withstands(accuracy=0.9)}
    assert "one draw of a random number" in found["conditions"][0]


def test_the_sentences_for_a_person(capsys, tmp_path):
    status, out, _ = certify(capsys, written(tmp_path / "run"), "--records", "3")
    assert status == 0
    lines = out.splitlines()
    assert lines[:2] == [
        "accuracy 0.9, one run",
        f"({rounded_up(epsilon_at(PLAN, 30))}, 1e-05)-DP for zeroing out one record "
        "(the number of records is public)",
    ]
    assert lines[2] == str(PLAN.certificate(accuracy=0.9, records=3))
    assert lines[2].startswith("If the expected accuracy is 0.9, then with up to 3 records zeroed")
    assert lines[3].startswith("This is the accuracy of one run")
    assert "no seed may be known to their author" in out


def test_several_runs_prove_their_expectation(capsys, tmp_path):
    folders = [written(tmp_path / str(i), 0.9 + i / 100) for i in range(5)]
    flags = ("--records", "2", "--relation", "replace-one", "--confidence", "0.8")
    status, out, _ = certify(capsys, *folders, *flags, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["accuracy"] == pytest.approx(0.92)
    assert found["expected"] == mean_at_least(found["accuracy"], runs=5, confidence=0.8)
    assert (found["runs"], found["confidence"]) == (5, 0.8)
    assert found["expected_is_assumed"] is False
    known = PLAN.certificate(
        accuracy=found["accuracy"], records=2, runs=5, confidence=0.8, relation=REPLACE_ONE
    )
    assert found["certificates"] == [{"records": 2, "at_least": known.at_least}]
    assert not any("one run" in line for line in found["conditions"])
    _, out, _ = certify(capsys, *folders, *flags)
    assert out.splitlines()[0] == "accuracy 0.92, 5 runs"
    assert str(known) in out


def test_a_run_of_prudent_train_is_certified(capsys, tmp_path, archive):
    flags = ["--method", "dpsgd", "--steps", "4", "--noise-multiplier", "3", "--seed", "0"]
    given = ["train", "--dataset", f"npz:{archive}", "--batch", "60", *flags]
    assert main([*given, "--out", str(tmp_path / "run"), "--json"]) == 0
    trained = json.loads(capsys.readouterr().out.splitlines()[-1])
    status, out, _ = certify(capsys, tmp_path / "run", "--records", "1", "--json")
    found = json.loads(out)
    assert status == 0
    for name in ("accuracy", "epsilon", "delta"):
        assert found[name] == trained[name]
    assert 0 < found["certificates"][0]["at_least"] < found["accuracy"]
    louder(tmp_path / "run")
    assert "whose paid.json and checkpoint.pt do not agree" in refused(capsys, tmp_path / "run")


def louder(folder):
    """Edits what a run says that it paid for: nearly all is noise."""
    path = folder / "paid.json"
    text = path.read_text()
    edited = re.sub(r'("noise_multiplier": )[0-9.]+', r"\g<1>999.0", text)
    assert edited != text
    path.write_text(edited)
    return text


def test_an_edited_record_of_what_was_paid_is_not_believed(capsys, tmp_path):
    folder = written(tmp_path / "run")
    text = louder(folder)
    assert "whose paid.json and metrics.jsonl do not agree" in refused(capsys, folder)
    (folder / "paid.json").write_text(text.replace('"steps": 30', '"steps": 29'))
    assert "do not agree" in refused(capsys, folder)
    (folder / "paid.json").write_text(text)
    assert certify(capsys, folder)[0] == 0
    bare = written(tmp_path / "bare", epsilon=None, delta=None)
    assert "to check paid.json by" in refused(capsys, bare)


def refused(capsys, *arguments):
    status, out, err = certify(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_what_is_refused(capsys, tmp_path):
    one = written(tmp_path / "one")
    assert "DIR: expected with the paid.json" in refused(capsys, tmp_path / "none")
    assert "DIR: expected each named once" in refused(capsys, one, tmp_path / "." / "one")
    copy = written(tmp_path / "copy")
    assert "DIR: expected with independent runs" in refused(capsys, one, copy)
    other = written(tmp_path / "other", 0.8, PTR)
    assert "DIR: expected with runs of one plan" in refused(capsys, one, other)
    assert "--metric: expected a result in [0, 1]" in refused(capsys, one, "--metric", "loss")
    assert "--metric: expected a result in [0, 1]" in refused(capsys, one, "--metric", "step")
    assert "--records: expected a whole number" in refused(capsys, one, "--records", "5,many")
    assert "--records: expected" in refused(capsys, one, "--records", "-5")
    assert "--above: expected in [0, 0.9)" in refused(capsys, one, "--above", "0.95")
    assert "--relation: expected one of" in refused(capsys, one, "--relation", "friend")
    two = written(tmp_path / "two", 0.91)
    assert "--confidence: expected" in refused(capsys, one, two, "--confidence", "1")
    (one / "metrics.jsonl").write_text('{"step": 3, "accu')
    assert "no complete entry" in refused(capsys, one)
    (one / "metrics.jsonl").unlink()
    assert "metrics.jsonl: No such file" in refused(capsys, one)


def test_an_entry_that_a_kill_left_incomplete_is_passed_over(capsys, tmp_path):
    folder = written(tmp_path / "run", 0.9)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "accuracy": 0.99')
    _, out, _ = certify(capsys, folder, "--records", "0", "--json")
    assert json.loads(out)["accuracy"] == 0.9


def test_a_text_in_the_metrics_cannot_fake_a_line(capsys, tmp_path):
    folder = written(tmp_path / "run", relation="one\x1b[2K\nforged")
    _, out, _ = certify(capsys, folder, "--records", "0")
    assert "\x1b" not in out
    assert "forged" not in out.splitlines()
