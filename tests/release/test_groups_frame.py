"""Answers by group are a dictionary that can be shown as a table."""

from prudent.release.noise import Distribution
from prudent.release.outcome import Branch, Groups, NoiseSpread, Refused, Released


def test_groups_become_a_frame_with_intervals() -> None:
    spread = NoiseSpread(Distribution.LAPLACE, 1.0, 0.0)
    released = Released(5.0, Branch.ROBUST, 1.4, 0.0, None, spread=spread)
    groups = Groups({"<a>": released, "b": Refused("no", None)})
    frame = groups.to_frame()
    assert list(frame.columns) == ["group", "value", "low", "high", "status"]
    assert frame.status.tolist() == ["released", "refused"]
    assert frame.low[0] < 5.0 < frame.high[0]
    assert "&lt;a&gt;" in groups._repr_html_()
