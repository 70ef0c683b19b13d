"""What the pages under *All modules* show, and in which order; mkdocstrings reads this file.

The pages of public names list these one by one, so that they stand in the order in which they are
used. Here are the rules for the modules behind them.
"""

import griffe

ABSTRACT = {"ABC", "Protocol"}
BEHIND = 1_000_000  # more than any module has lines


class Reference(griffe.Extension):
    """Concrete classes before abstract ones, and each name where it is defined."""

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """Moves an abstract class behind the rest of its module: members are ordered by line.

        A module must define a base class before its subclasses; a reader wants it after them.
        """
        bases = {str(base).split("[")[0].rsplit(".", 1)[-1] for base in cls.bases}
        if bases & ABSTRACT and cls.lineno is not None:
            cls.lineno += BEHIND

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        """Shows the parameters of the function that another one is declared to be `like`."""
        for decorator in func.decorators:
            name, _, model = str(decorator.value).rstrip(")").partition("(")
            if name == "like" and func.parent is not None:
                func.parameters = func.parent[model].parameters

    def on_module(self, *, mod: griffe.Module, **_: object) -> None:
        """Hides what a package re-exports: its page of public names has it already."""
        if mod.is_init_module:
            mod.exports = None
