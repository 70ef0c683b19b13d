"""`prudent train`: what is solved for, what is printed, and one line for what is wrong."""

import json

import attrs
import numpy as np
import pytest
import torch

from prudent.accounting import ZERO_OUT
from prudent.cli import command_line, main
from prudent.training import HeldOut, LossRelease, Plan, Sum
from prudent.training.run.checkpoint import load_checkpoint
from prudent_lab import declared
from prudent_lab.settings import WatchSettings, setting_fields

pytestmark = pytest.mark.usefixtures("same_draws")

KEYS = {"accuracy", "epsilon", "delta", "relation", "steps", "noise_multiplier", "pass_rate"}
KEYS |= {"protected", "released"}


def run(capsys, archive, *flags, status=0):
    """The last line of a JSON run."""
    seed = () if any(flag.endswith(".toml") for flag in flags) else ("--seed", "0")
    given = ["train", "--dataset", f"npz:{archive}", "--batch", "60", "--json", *seed, *flags]
    assert main(given) == status, capsys.readouterr().err
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out.splitlines()[-1])


def error(capsys, *flags):
    """The one line that a wrong command line is answered with."""
    assert main(["train", *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err.strip()


@pytest.mark.unhurried
def test_noise_is_solved_for_epsilon_and_steps(capsys, archive):
    result = run(
        capsys, archive, "--method", "dpsgd", "--epsilon", "4", "--delta", "1e-4", "--steps", "40"
    )
    assert set(result) == KEYS
    assert 3.99 < result["epsilon"] <= 4
    assert (result["delta"], result["steps"], result["pass_rate"]) == (1e-4, 40, None)
    assert result["accuracy"] > 0.8


def test_epsilon_follows_from_noise_and_steps(capsys, archive, tmp_path):
    flags = ("--noise-multiplier", "1", "--steps", "25", "--propose", "0.9", "--clip", "2")
    test = ("--test", "gaussian:1", "--failure", "1e-6", "--trim-up", "0.05", "--trim-down", "0.05")
    out = tmp_path / "run"
    result = run(capsys, archive, *flags, *test, "--lr", "0.2", "--out", str(out))
    assert (result["steps"], result["noise_multiplier"]) == (25, 1)
    assert result["epsilon"] > 1
    assert 0 < result["pass_rate"] < 1
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoint.pt",
        "metrics.jsonl",
        "paid.json",
        "receipt.json",
        "running.lock",
    ]
    # A finished run, resumed, is the same run; another plan is refused.
    again = run(capsys, archive, *flags, *test, "--lr", "0.2", "--out", str(out), "--resume")
    assert again == result
    common = ("--dataset", f"npz:{archive}", "--method", "dpsgd", "--batch", "60")
    line = error(capsys, *common, *flags, "--out", str(out), "--resume")
    assert "plan with which this run was started" in line


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("flags", "adjacency", "records"),
    [
        ([], "zero-out", 1),
        (["--records-per-person", "2"], "zero-out", 2),
        (["--public-size", "300"], "add-remove", 1),
        (["--relation", "replace-one"], "replace-one", 1),
    ],
)
def test_neighbours_are_named(capsys, archive, flags, adjacency, records):
    common = ("--method", "dpsgd", "--steps", "3", "--noise-multiplier", "2")
    result = run(capsys, archive, *common, *flags)
    assert result["relation"] == {"kind": "Relation", "adjacency": adjacency, "records": records}


def test_people_are_protected(capsys, archive):
    """150 people with four records each: rate and batch count people, ε is that of the plan."""
    common = ("--method", "dpsgd", "--steps", "3", "--noise-multiplier", "2", "--batch", "30")
    result = run(capsys, archive, *common, "--unit", "owners", "--records-per-person", "3")
    assert result["protected"] == "person"
    assert result["relation"]["records"] == 1
    rule = Sum(clip=1.0, noise_multiplier=2.0)
    plan = Plan(sampling_rate=30 / 150, steps=3, aggregation=rule, expected_batch=30)
    assert result["epsilon"] == plan.epsilon(1e-5)
    flags = ("--dataset", f"npz:{archive}", *common)
    assert error(capsys, *flags, "--unit", "nobody").startswith("--unit: expected the name of an")
    assert error(capsys, *flags, "--per-unit", "sum").startswith("--per-unit: expected None with")
    assert error(capsys, *common, "--unit", "owners").startswith("--unit: expected None with mnist")


@pytest.mark.parametrize("people", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_held_out_records_are_released_and_not_trained_on(capsys, archive, tmp_path, people):
    flags = ("--method", "dpsgd", "--steps", "4", "--noise-multiplier", "2", "--batch", "30")
    flags += ("--held-out", "0.2", "--held-out-every", "2", "--held-out-noise", "4")
    flags += ("--watch-every", "3", "--patience", "9", "--out", str(tmp_path / "run"))
    result = run(capsys, archive, *flags, *(("--unit", "owners") if people else ()))
    count = 150 if people else 600
    plan = Plan(
        sampling_rate=30 / (count - count // 5),
        steps=4,
        aggregation=Sum(clip=1.0, noise_multiplier=2.0),
        expected_batch=30,
        relation=ZERO_OUT,
        watch=LossRelease(loss_every=3, bound=3.0),
        held_out=HeldOut(every=2, noise_multiplier=4.0),
    )
    assert result["epsilon"] == plan.epsilon(1e-5)
    assert set(result["released"]) == {
        "train_loss", "train_loss_noise", "held_out_accuracy", "held_out_accuracy_noise"
    }  # fmt: skip
    assert result["released"]["held_out_accuracy_noise"] == pytest.approx(2 / (count // 5))
    assert "held_out_accuracy" in (tmp_path / "run" / "metrics.jsonl").read_text()
    line = error(capsys, "--dataset", f"npz:{archive}", *flags[:10], "--public-size", "600")
    assert line.startswith("--public-size: expected to be left out with --held-out")


def test_without_privacy(capsys, archive):
    result = run(capsys, archive, "--method", "sgd", "--steps", "60", "--corrupt", "label:0.1")
    assert result["epsilon"] is None
    assert result["accuracy"] > 0.8


@pytest.mark.unhurried
def test_a_file_and_flags_that_win_over_it(capsys, archive, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('method = "dpsgd"\nsteps = 6\nnoise_multiplier = 1.5\nseed = 4\n')
    first = run(capsys, archive, str(path))
    assert (first["steps"], first["noise_multiplier"]) == (6, 1.5)
    assert run(capsys, archive, str(path), "--steps", "4")["steps"] == 4
    assert run(capsys, archive, str(path)) == first
    flags = ("--method", "dpsgd", "--steps", "6", "--noise-multiplier", "1.5", "--seed", "4")
    assert run(capsys, archive, *flags) == first


def test_noise_on_data_of_ones_own_is_nobodys_to_know(capsys, archive, tmp_path):
    """With seed 0 for all, everybody could subtract it."""
    keys = []
    for name in ("first", "second"):
        flags = ["--method", "dpsgd", "--steps", "4", "--noise-multiplier", "1"]
        out = tmp_path / name
        given = ["train", "--dataset", f"npz:{archive}", *flags, "--out", str(out)]
        assert main(given) == 0
        assert main([*given, "--resume"]) == 0
        state = load_checkpoint(out, torch.device("cpu"))
        keys.append(state["key"])
        shown = capsys.readouterr().out
        assert keys[-1] not in shown
        assert not state["predictable"]
        assert "predictable" not in shown
    assert len(bytes.fromhex(keys[0])) == 32
    assert keys[0] != keys[1]


def test_for_a_person(capsys, archive, tmp_path):
    flags = ["--method", "dpsgd", "--steps", "10", "--noise-multiplier", "1"]
    flags += ["--seed", "0"]
    given = ["train", "--dataset", f"npz:{archive}", *flags, "--out", str(tmp_path)]
    assert main(given) == 0
    shown, beside = capsys.readouterr()
    assert beside == ""  # in a pipe there is no progress
    assert "on the clean test part" in shown
    assert "1e-05)-DP" in shown
    assert "neighbours    by zeroing out one record (the number of records is public)" in shown
    assert "seed          0: the noise is predictable, whoever knows it can subtract it" in shown
    assert main(given) == 2
    assert "Use --resume to continue that run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--steps", "10", "--epsilon", "-1"], "--epsilon: expected"),
        (["--steps", "ten"], "--steps: expected a whole number, got 'ten'."),
        (["--steps", "-5", "--epsilon", "1"], "--steps: expected"),
        (["--delta", "0", "--steps", "5"], "--delta: expected in (0, 0.5), got 0.0."),
        (["--clip", "0", "--steps", "5", "--noise-multiplier", "1"], "--clip: expected"),
        (["--propose", "1.5", "--steps", "5"], "--propose: expected in (0, 1), got 1.5."),
        (["--noise-multiplier", "-1", "--steps", "5"], "--noise-multiplier: expected"),
        (["--test", "cauchy:1", "--steps", "5"], "--test: expected laplace:B, gaussian:S"),
        (["--test", "none", "--steps", "5"], "--test: expected laplace:B, gaussian:S"),
        (["--failure", "0.7", "--steps", "5"], "--failure: expected in (0, 0.5), got 0.7."),
        (["--method", "adam"], "--method: expected one of ptr, trimmed, dpsgd, sgd, got 'adam'."),
        (["--accountant", "x", "--steps", "5"], "--accountant: expected one of pld, rdp, got 'x'."),
        (["--reveals", "all", "--steps", "5"], "--reveals: expected one of"),
        (["--fallback", "x", "--steps", "5"], "--fallback: expected one of"),
        (
            ["--fallback-scale", "-1", "--steps", "5"],
            "--fallback-scale: expected finite and >= 0, got -1.0.",
        ),
        (["--trim", "2", "--steps", "5"], "--trim: expected in [0, 1], got 2.0."),
        (["--trim-up", "2", "--steps", "5"], "--trim-up: expected in [0, 1], got 2.0."),
        (["--trim-most", "2", "--steps", "5"], "--trim-most: expected in [0, 1], got 2.0."),
        (["--trim", "0.7", "--steps", "5"], "--trim: expected in [least, most] = [0.0, 0.5]"),
        (["--corrupt", "meteor:0.1", "--steps", "5"], "--corrupt: expected to be none or one of"),
        (["--corrupt", "label:0.9", "--steps", "5"], "RATIO in [0, 0.5]"),
        (
            ["--corrupt", "gradient:0.1:size=2", "--steps", "5"],
            "--corrupt: expected with settings among variance after the ratio, as NAME=VALUE",
        ),
        (["--seed", "-1", "--steps", "5"], "--seed: expected"),
        (["--device", "abacus", "--steps", "5"], "--device: expected cpu, cuda or cuda:N"),
        (["--device", "meta", "--steps", "5"], "--device: expected cpu, cuda or cuda:N"),
        (["--resume", "--steps", "5", "--noise-multiplier", "1"], "--out: expected the folder"),
        (
            ["--method", "sgd"],
            "--steps: expected for sgd, which has no budget to stop it, got nothing.",
        ),
        ([], "noise_multiplier (the third is solved for), got only epsilon = 3."),
        (
            ["--steps", "5", "--corrupt", "label:0.1", "--out", "nowhere"],
            "--seed: expected when --corrupt and --out are used with your own data, got nothing",
        ),
        (["nowhere.toml"], "nowhere.toml: No such file or directory."),
        (["--flag"], "No such option: --flag"),
        (["--steps", "2", "--average", "1"], "--average: expected in [0, 1), got 1.0."),
        (["--dataset", "npz:nowhere.npz", "--steps", "1"], "npz:nowhere.npz"),
        (["--dataset", "imagenet", "--steps", "1"], "--dataset: expected one of mnist"),
        *(
            (
                ["--method", "sgd", "--steps", "5", flag, "2"],
                f"{flag}: expected to be left out with sgd, which is not private, got 2.0.",
            )
            for flag in ("--epsilon", "--noise-multiplier")
        ),
        (  # it took the steps that epsilon paid for, 33 of 60, and did not say so
            ["--noise-multiplier", "1", "--steps", "60", "--epsilon", "2"],
            "Drop noise_multiplier to have the least noise solved for, steps to",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_line_for_what_is_wrong(capsys, archive, flags, line):
    given = ["--dataset", f"npz:{archive}", "--batch", "60", *flags]
    assert line in error(capsys, *given)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("steps = [", "a TOML file"),
        ("stepps = 3\n", "got stepps."),
        ('steps = "many"\n', "--steps: expected a whole number"),
        ("dataset = 3\nsteps = 3\n", "--dataset: expected a text, got 3."),
        ("corrupt = 3\nsteps = 3\n", "--corrupt: expected a text, got 3."),
        ('lr = "fast"\nsteps = 3\n', "--lr: expected finite and > 0, got 'fast'."),
        ("test = 4\nsteps = 3\n", "--test: expected"),
        ("method = 4\nsteps = 3\n", "--method: expected one of"),
        ("[train]\nsteps = 3\n", "got train."),
    ],
)
def test_one_line_for_a_wrong_file(capsys, tmp_path, text, line):
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert line in error(capsys, str(path))


def test_recipes_are_listed_with_what_they_are_compared_with(capsys):
    assert main(["train", "--recipe", "list"]) == 0
    shown = capsys.readouterr().out
    assert "scattering-linear" in shown
    assert main(["train", "--recipe", "list", "--json"]) == 0
    assert "98.7" in json.loads(capsys.readouterr().out)["scattering-linear"][1]
    assert "--recipe: expected one of" in error(capsys, "--recipe", "nothing")


def test_a_recipe_brings_features_and_settings_that_flags_change(capsys, tmp_path):
    chance, path = np.random.default_rng(0), tmp_path / "images.npz"
    images, labels = chance.integers(256, size=(90, 28, 28), dtype=np.uint8), np.arange(90) % 3
    images[labels == 1, :14], images[labels == 2, :, :14] = 0, 0
    np.savez(
        path,
        train_features=images[:60, None],
        train_labels=labels[:60],
        test_features=images[60:, None],
        test_labels=labels[60:],
        classes=3,
    )
    flags = ("--recipe", "glyphs-linear", "--steps", "3", "--epsilon", "50", "--lr", "100")
    result = run(capsys, path, *flags)
    assert (result["steps"], result["pass_rate"]) == (3, None)
    assert 49 < result["epsilon"] <= 50
    assert result["accuracy"] > 0.6


def flags_of(command):
    return {parameter.name for parameter in command_line().commands[command].params}


def test_every_setting_of_an_experiment_has_a_flag():
    settings = {field.name for _, field, _ in setting_fields()}
    assert len(settings) == 37
    elsewhere = {"settings", "recipe", "device", "out", "resume", "as_json", "quiet"}
    assert flags_of("train") == settings | elsewhere
    assert set(declared("prudent_lab.commands", "flags.toml")["flags"]) == settings
    # A search solves for noise that nobody knows, on records whose number is public.
    missing = {"public_size", "corrupt", "seed", "accountant"}
    missing |= {field.name for field in attrs.fields(WatchSettings)} - {"held_out"}  # its own
    assert settings - flags_of("tune") == missing


@pytest.mark.thorough
def test_steps_whose_test_failed_have_a_learning_rate_of_their_own(capsys, archive, tmp_path):
    """Nothing passes a test of this threshold; without its learning rate nothing is learned."""
    flags = ("--noise-multiplier", "0.01", "--steps", "20", "--test", "gaussian:30")
    with pytest.warns(RuntimeWarning, match="The test hardly ever passes, whatever the data"):
        results = [
            run(capsys, archive, *flags, "--fallback-scale", scale, "--out", str(tmp_path / scale))
            for scale in ("1", "0")
        ]
    assert [result["pass_rate"] for result in results] == [0, 0]
    assert results[0]["epsilon"] == results[1]["epsilon"]
    assert results[0]["accuracy"] > 0.8 > results[1]["accuracy"]


def test_switches_are_shown_without_a_type(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    for command in (["train"], ["release", "median"], ["paper", "report"], ["budget", "show"], []):
        assert main([*command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--help" in shown
        assert "<bool>" not in shown


def test_help_shows_the_defaults_of_the_experiment(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for default in ("mnist", "ptr", "gaussian:4", "monotone-branch", "sum", "none", "pld"):
        assert f" [{default}] " in shown


def test_a_corruption_has_its_strength(capsys, archive):
    """Noise of no variance on the gradients is no corruption."""
    common = ("--method", "dpsgd", "--steps", "6", "--noise-multiplier", "1")
    clean, weak, strong = (
        run(capsys, archive, *common, "--corrupt", corrupt)["accuracy"]
        for corrupt in ("none", "gradient:0.5:variance=1e-30", "gradient:0.5")
    )
    assert clean == weak != strong


@pytest.mark.unhurried
@pytest.mark.parametrize("corrupt", ["none", "label:0.3", "sign-flip:0.1"])
def test_a_label_that_is_no_class_is_not_told_of(capsys, archive, tmp_path, corrupt):
    with np.load(archive) as arrays:
        changed = dict(arrays)
    changed["train_labels"] = changed["train_labels"].copy()
    changed["train_labels"][11] = 918273
    np.savez(tmp_path / "odd.npz", **changed)
    flags = ("--noise-multiplier", "1", "--steps", "8", "--method", "dpsgd", "--corrupt", corrupt)
    odd, clean = (run(capsys, path, *flags) for path in (tmp_path / "odd.npz", archive))
    assert set(odd) == KEYS
    assert odd["epsilon"] == clean["epsilon"]
