"""Declared forms of texts: "number($1,234.56)", "number(1.234,56 €)", "date(31.12.2024)".

A form is shown by an example: always the number 1234.56, or the last second of the year 2024, as
the file writes it. Each text is read by itself, and one of another form has no value: "1.234" is
no number where the point separates thousands and three digits do not follow it.
"""

import re

import attrs
import ibis
import ibis.expr.types as ir

from prudent._validate import ArgumentError
from prudent.release.columns.dialects import number_of_text
from prudent.release.columns.scales import Scale

_NUMBER = re.compile(r"(?P<before>\D*)1(?P<comma>\D?)234((?P<mark>\D)\d+)?(?P<after>\D*)")
_PARTS = {"2024": r"(\d{4})", "12": r"(\d{1,2})", "31": r"(\d{1,2})"}
_TIMES = {"23": r"(\d{1,2})", "59": r"(\d{2})", "58": r"(\d{2}(?:\.\d+)?)"}


@attrs.frozen
class TextFormat:
    """How a text becomes one that every engine reads."""

    scale: Scale  # of what it holds
    pattern: str  # of texts in this form; others have no value
    removed: tuple[str, ...] = ()  # of a number: what is left out of it
    mark: str = "."  # of a number: between its whole part and the digits after it
    places: tuple[int, ...] = ()  # of a date: its year, month, day, hour, minute, second, if any

    @classmethod
    def of(cls, declared: str) -> "TextFormat | None":
        """The form that a declaration shows by an example; None if it names a type alone.

        Raises:
            ArgumentError: if the example is not the number or the time that it has to be.
        """
        found = re.fullmatch(r"(number|date|timestamp)\((.*)\)", str(declared))
        if found is None:
            return None
        kind, example = found.groups()
        form = _number(example) if kind == "number" else _time(kind, example)
        if form is None:
            raise ArgumentError(
                "read_as",
                "an example that writes 1234.56 or the date 2024-12-31 as the file does",
                got=declared,
                hint="For example number($1,234.56), number(1.234,56), date(31.12.2024) or "
                "timestamp(12/31/2024 23:59:58).",
            )
        return form

    def numbers(self, text: ir.Value) -> ir.Value:
        """The numbers of a column of texts, each of its own text; NULL for another form."""
        fits = text.re_search(self.pattern)
        if self.places:
            year, month, day, *times = (text.re_extract(self.pattern, at) for at in self.places)
            plain = year + "-" + month.lpad(2, "0") + "-" + day.lpad(2, "0")
            if times:
                clock = [times[0].lpad(2, "0"), *times[1:], *["00"] * (3 - len(times))]
                plain = plain + " " + clock[0] + ":" + clock[1] + ":" + clock[2]
        else:
            plain = text
            for each in self.removed:
                plain = plain.replace(each, "")
            plain = plain.replace(self.mark, ".")
        return number_of_text(ibis.ifelse(fits, plain, ibis.null("string")), self.scale)


def _number(example: str) -> TextFormat | None:
    found = _NUMBER.fullmatch(example)
    if found is None or (found["comma"] and found["comma"] == found["mark"]):
        return None
    before, after = found["before"].strip(), found["after"].strip()
    comma, mark = found["comma"], found["mark"] or "."
    if comma == mark:  # 1.234 without digits after it
        mark = "," if comma == "." else "."
    spaced = re.escape(comma)
    whole = rf"(\d{{1,3}}({spaced}\d{{3}})+|\d+)" if comma else r"\d+"
    signs = (f"({re.escape(each)})?" for each in (before, after))
    first, last = signs
    pattern = rf"^\s*[-+]?\s*{first}\s*[-+]?{whole}({re.escape(mark)}\d*)?\s*{last}\s*$"
    removed = tuple(each for each in (comma, before, after, " ") if each)
    return TextFormat(Scale.named("number"), pattern, removed, mark)


def _time(kind: str, example: str) -> TextFormat | None:
    parts = _PARTS if kind == "date" else _PARTS | _TIMES
    tokens = re.findall(r"\d+", example)
    if not {*_PARTS} <= {*tokens} <= {*parts} or len({*tokens}) < len(tokens):
        return None
    pattern = re.sub(r"\d+", lambda token: parts[token[0]], re.escape(example))
    places = tuple(tokens.index(each) + 1 for each in parts if each in tokens)
    if kind == "timestamp" and [each for each in _TIMES if each in tokens][:2] != ["23", "59"]:
        return None
    return TextFormat(Scale.named(kind), rf"^\s*{pattern}\s*$", places=places)
