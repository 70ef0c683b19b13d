"""Pictures follow the reader's scheme, and are the same again."""

import xml.etree.ElementTree as ElementTree

import pytest

pytest.importorskip("matplotlib", reason="pictures need the extra `train`")

from prudent_lab import demo as picture


def drawn(path):
    with picture.panels(2, path) as axes:
        for panel in axes:
            panel.plot([0, 1], [0, 1], color="#2F8FD0", label="a line")
            panel.set_title("a title")
            panel.legend()
    return path.read_text("utf-8")


def test_a_picture_has_no_colour_of_its_own_for_text_and_axes(tmp_path):
    text = drawn(tmp_path / "a.svg")
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert "style" in tags
    assert "prefers-color-scheme: dark" in text
    assert "#2f8fd0" in text.lower()  # lines keep theirs
    assert "currentColor" in text
    for fixed in ("#000000", "#ffffff", "black", "white", picture._INK):
        assert fixed not in text.lower()


def test_the_same_picture_is_the_same_file(tmp_path):
    assert drawn(tmp_path / "a.svg") == drawn(tmp_path / "b.svg")
