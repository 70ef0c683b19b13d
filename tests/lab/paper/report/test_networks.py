"""What is said of CIFAR10's networks and of VGG16 follows from the shipped results."""

import pytest

from prudent_lab.paper.jobs import published_for
from prudent_lab.paper.report import display_names
from prudent_lab.paper.report.comparison import plain_table
from prudent_lab.paper.report.page import as_markdown
from prudent_lab.paper.results import read, shipped
from tests.lab.paper.report.conftest import cells


@pytest.fixture(scope="module")
def found():
    return read(shipped())


def gaps(results, dataset, method, corrupt=None):
    """Differences from the paper by PLD, of one corruption or of all but 20 % random labels."""
    return [
        cell.mean - printed.accuracy
        for printed in published_for(dataset)
        if printed.method == method
        and (printed.corrupt == corrupt if corrupt else printed.corrupt != "label:0.2")
        and (cell := results.row((dataset, printed.corrupt, printed.epsilon)).get((method, "pld")))
    ]


def test_momentum_reproduces_the_paper_but_for_many_wrong_labels(found):
    assert len(gaps(found, "cifar10-momentum", "ptr")) == 12
    assert max(map(abs, gaps(found, "cifar10-momentum", "ptr"))) < 1
    assert max(map(abs, gaps(found, "cifar10-momentum", "trimmed"))) < 2
    for method in ("ptr", "trimmed"):
        assert all(2.5 < gap < 5.5 for gap in gaps(found, "cifar10-momentum", method, "label:0.2"))


def test_as_printed_the_network_does_not(found):
    assert all(-14 < gap < -8 for gap in gaps(found, "cifar10", "ptr", "none"))


def test_no_test_passes_with_momentum(found):
    rows = [r for r in found.readings if (r.dataset, r.column) == ("cifar10-momentum", "ptr")]
    assert rows
    assert all(r.pass_rate == 0 for r in rows)


def test_vgg16_has_five_seeds_and_ends_after_the_steps_that_are_told(found):
    assert "substitute for VGG11" in display_names.dataset("cifar10-vgg16")
    here = plain_table(found, 2, ["cifar10-vgg16"])
    assert {line[accountant]["seeds"] for line in here for accountant in ("rdp", "pld")} == {5}
    steps = {
        r.column: r.steps
        for r in found.readings
        if (r.dataset, r.epsilon, r.accountant) == ("cifar10-vgg16", 3.0, "pld")
    }
    assert steps == {"ptr": 208, "trimmed": 795}


def test_the_section_compares_what_was_run(found, results):
    assert "## CIFAR10: what differs" not in as_markdown(results(cells({"ptr": [91.0]})), "")
    section = as_markdown(found, "").partition("## CIFAR10: what differs")[2].partition("\n## ")[0]
    titles = [line.strip("*") for line in section.splitlines() if line.startswith("**")]
    assert "Table 1: CIFAR10, tutorial network, momentum 0.9" in titles
    first, *_ = gaps(found, "cifar10-momentum", "trimmed", "none")
    assert f"({first:+.2f})".replace("-", "−") in section
