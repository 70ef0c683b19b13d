"""What the reference shows of a name that is declared by another; mkdocstrings reads this file."""

import griffe


class Reference(griffe.Extension):
    """Parameters of functions that have those of another one."""

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        """Shows the parameters of the function that another one is declared to be `like`."""
        for decorator in func.decorators:
            name, _, model = str(decorator.value).rstrip(")").partition("(")
            if name == "like" and func.parent is not None:
                func.parameters = func.parent[model].parameters
