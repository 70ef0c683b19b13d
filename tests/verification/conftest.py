import copy
import json

import pytest

from prudent.receipts.receipt import Receipt


class Editing:
    """A receipt on disk that a test changes, with or without new digests."""

    def __init__(self, path):
        self.path = path
        self.content = json.loads(path.read_text())

    def edited(self, place, change, *, sealed):
        """The file of a copy with one field changed; `sealed`: with digests that fit again."""
        content = copy.deepcopy(self.content)
        inside = content
        for name in place[:-1]:
            inside = inside[name]
        inside[place[-1]] = change(inside[place[-1]])
        if sealed:
            fields = {k: v for k, v in content.items() if k not in ("format", "digest")}
            receipt = Receipt(**fields | {"epsilon": float(content["epsilon"])})
            content["digests"] |= receipt.expected_digests()
            receipt = Receipt(**fields | {"epsilon": float(content["epsilon"])})
            content["digest"] = receipt.digest
        path = self.path.with_name("edited.json")
        path.write_text(json.dumps(content))
        return path


@pytest.fixture
def editing():
    return Editing


def other(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "x" if value is None else value + "x"


def places_of(value, here=()):
    """Where every field of a receipt is that holds no others."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places_of(each, (*here, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places_of(each, (*here, index))
    else:
        yield here
