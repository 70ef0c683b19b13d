"""Events survive the way to JSON and back, and read well."""

import json
import math
import re

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent
from hypothesis import given
from hypothesis import strategies as st

import prudent
from prudent.accounting import (
    ZERO_OUT,
    ApproximateDpEvent,
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    ExponentialMechanismDpEvent,
    GaussianTest,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
    RandomAllocationDpEvent,
    Relation,
    Reveals,
    describe,
    from_json,
    to_json,
)
from prudent.accounting.serialisation import from_plain, to_plain
from tests.raising import refused

positive = st.floats(1e-3, 1e3)
kinds = st.sampled_from([LaplaceTest, GaussianTest, DiscreteLaplaceTest, DiscreteGaussianTest])
tests = st.builds(lambda kind, scale: kind(scale), kinds, positive)
releases = st.builds(
    ProposeTestReleaseDpEvent,
    st.one_of(positive, st.just(math.inf)), st.one_of(st.just(0.0), st.floats(1e-3, 5)), tests,
    st.floats(1e-12, 0.49), positive, st.sampled_from(Reveals),
)  # fmt: skip
leaves = st.one_of(
    releases,
    tests,
    st.builds(dp.GaussianDpEvent, positive),
    st.builds(dp.LaplaceDpEvent, positive),
    st.just(dp.NoOpDpEvent()),
    st.just(dp.NonPrivateDpEvent()),
    st.builds(dp.ZCDpEvent, positive),
    st.builds(RandomAllocationDpEvent, st.builds(dp.GaussianDpEvent, positive), st.integers(1, 99)),
    st.builds(ApproximateDpEvent, positive, st.floats(0, 0.9)),
    st.builds(ExponentialMechanismDpEvent, st.floats(1e-3, 30)),
    st.just(MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0], [0.5, 0.5])),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(dp.ComposedDpEvent, st.lists(inner, max_size=3)),
        st.builds(dp.SelfComposedDpEvent, inner, st.integers(0, 10**9)),
        st.builds(dp.PoissonSampledDpEvent, st.floats(0, 1), inner),
        st.builds(RepeatAndSelectDpEvent, inner, st.floats(1, 9), st.floats(0.5, 2)),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("relation", [ZERO_OUT, Relation("replace-one", 7)])
def test_a_relation_comes_back_and_is_no_event(relation):
    plain = to_plain(relation)
    assert from_plain(json.loads(json.dumps(plain))) == relation
    with pytest.raises(ValueError, match="Expected an event in JSON"):
        from_json(json.dumps({"format": 1, **plain}))
    with refused("adjacency"):
        from_plain({"kind": "Relation", "adjacency": "swap", "records": 1})


@given(event=events)
def test_every_event_comes_back(event):
    text = to_json(event)
    assert "\n" not in text
    assert from_json(text) == event
    assert from_plain(to_plain(event)) == event
    assert describe(event)


WRITTEN = """\
{"format": 1, "kind": "ComposedDpEvent", "events": [{"kind": "SelfComposedDpEvent", "event": \
{"kind": "PoissonSampledDpEvent", "sampling_probability": 0.004, "event": {"kind": \
"ProposeTestReleaseDpEvent", "noise_multiplier": 1.1, "propose": 0.5, "test": {"kind": \
"GaussianTest", "scale": 4.0}, "failure": 1e-08, "robust_noise_multiplier": null, "reveals": \
"branch"}}, "count": 5000}, {"kind": "ProposeTestReleaseDpEvent", "noise_multiplier": "inf", \
"propose": 0.0, "test": {"kind": "DiscreteLaplaceTest", "scale": 20.0}, "failure": 1e-08, \
"robust_noise_multiplier": 3.0, "reveals": "margin"}]}"""


def test_an_event_is_read_as_format_1_wrote_it():
    steps = ProposeTestReleaseDpEvent(1.1, 0.5, GaussianTest(4.0), 1e-8, reveals=Reveals.BRANCH)
    refusing = ProposeTestReleaseDpEvent(math.inf, 0.0, DiscreteLaplaceTest(20.0), 1e-8, 3.0)
    sampled = dp.PoissonSampledDpEvent(0.004, steps)
    event = dp.ComposedDpEvent([dp.SelfComposedDpEvent(sampled, 5000), refusing])
    assert from_json(WRITTEN) == event
    assert to_json(event) == WRITTEN


def test_an_event_of_a_later_format_is_refused():
    content = json.loads(to_json(dp.GaussianDpEvent(1.0)))
    later = json.dumps(content | {"format": content["format"] + 1, "kind": "LaterDpEvent"})
    needed = f"needs a newer version of prudent than {re.escape(prudent.__version__)}"
    with pytest.raises(ValueError, match=rf"event JSON of format 1.*got format 2.*{needed}"):
        from_json(later)


@pytest.mark.parametrize("number", [0, -1, 1.0, True, "1", None, [1]])
def test_what_is_no_format_number_is_refused(number):
    content = json.loads(to_json(dp.GaussianDpEvent(1.0)))
    with pytest.raises(ValueError, match="format"):
        from_json(json.dumps(content | {"format": number}))
    del content["format"]
    with pytest.raises(ValueError, match="format"):
        from_json(json.dumps(content))


@pytest.mark.parametrize("number", [np.float32(2), np.float64(2), np.int64(2), 2])
def test_numbers_of_any_kind_are_written(number):
    release = ProposeTestReleaseDpEvent(number, 0.5, LaplaceTest(number), 1e-8, number)
    assert from_json(to_json(release)) == ProposeTestReleaseDpEvent(
        2.0, 0.5, LaplaceTest(2.0), 1e-8, 2.0
    )
    assert hash(release.test) == hash(LaplaceTest(2.0))


def test_numbers_that_dp_accounting_keeps_are_written():
    event = dp.GaussianDpEvent(np.float32(0.5))
    assert from_json(to_json(event)) == dp.GaussianDpEvent(0.5)
    assert from_json(to_json(dp.GaussianDpEvent(np.float32(np.inf)))).noise_multiplier == math.inf


def test_a_word_that_changes_is_noticed():
    event = ProposeTestReleaseDpEvent(1.1, 0.5, LaplaceTest(1.0), 1e-8)
    text = to_json(event)
    assert from_json(text.replace("1.1", "1.2")) != event
    assert from_json(text.replace("LaplaceTest", "GaussianTest")) != event
    assert from_json(text.replace('"margin"', '"branch"')).reveals is Reveals.BRANCH


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected an event in JSON"),
        ("{", "Expected an event in JSON"),
        (
            '{"format": 1, "kind": "os.system"}',
            "Expected kind one of .*GaussianDpEvent.*, got 'os.system'",
        ),
        ('{"format": 1, "kind": ["GaussianDpEvent"]}', "Expected kind one of"),
        ('{"format": 1, "scale": 1}', "Expected kind one of"),
        ("[]", "Expected an event in JSON, got"),
        ("3", "Expected an event in JSON, got '3'"),
        ('"inf"', "Expected an event in JSON"),
        (
            '{"format": 1, "kind": "GaussianDpEvent", "sigma": 1}',
            "Expected the fields of GaussianDpEvent",
        ),
        ('{"format": 1, "kind": "LaplaceTest", "scale": -1}', "Expected scale finite and > 0"),
        ('{"format": 1, "kind": "LaplaceTest", "scale": "nan"}', "Expected scale finite and > 0"),
    ],
)
def test_what_is_not_an_event_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        from_json(text)


def test_an_event_that_cannot_be_written_is_refused():
    with pytest.raises(ValueError, match="Expected an event in JSON"):
        from_json(to_json(dp.GaussianDpEvent(math.nan)).replace("nan", '"nan'))


def test_events_read_well():
    release = ProposeTestReleaseDpEvent(1.1, 0.5, LaplaceTest(2.0), 1e-8)
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.004, release), 8068)
    assert describe(event) == (
        "8,068 × each record with probability 0.004: Propose-Test-Release: proposes 0.5 of the "
        "global sensitivity, Laplace test of scale 2 with failure 1e-08, releases at 1.1 × the "
        "proposal, else falls back to noise multiplier 1.1; shows the noisy margin"
    )
    refusing = ProposeTestReleaseDpEvent(
        math.inf, 0.0, DiscreteGaussianTest(2.0), 1e-8, 3.0, "monotone-branch"
    )
    words = describe(refusing)
    for phrase in ("no global one is known", "discrete Gaussian test", "refuses", "monotone"):
        assert phrase in words
    allocated = RandomAllocationDpEvent(dp.GaussianDpEvent(1.5), 234)
    assert describe(allocated) == (
        "each record in one of 234 steps, chosen at random: Gaussian noise, multiplier 1.5"
    )
    assert describe(ApproximateDpEvent(0.7, 1e-3)) == "a mechanism of ε = 0.7 and δ = 0.001"
    composed = dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), LaplaceTest(1.0), dp.NoOpDpEvent()])
    assert describe(dp.SelfComposedDpEvent(composed, 3)).splitlines() == [
        "3 ×",
        "  Gaussian noise, multiplier 2",
        "  Laplace test of scale 1 of a margin",
        "  nothing",
    ]
