"""What the reference shows of a name that is declared by another; mkdocstrings reads this file."""

import griffe

_FUNCTIONS = "prudent.release.functions"
_METHODS = {"table": "ask"}  # of `Table`, where the function has another name


class Reference(griffe.Extension):
    """Signatures and texts of the statistics, which are declared once."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Adds the statistics as functions and as methods of `Table`, as their stub has them."""
        if pkg.path != "prudent":
            return
        functions, table = pkg["release.functions"], pkg["release.data_table.Table"]
        methods = functions["StatisticMethods"]
        lists = [*pkg["release.statistics"].members.items(), *pkg["release"].members.items()]
        for name, listed in lists:
            if not listed.is_alias or not listed.target_path.startswith(f"{_FUNCTIONS}."):
                continue
            method = methods[_METHODS.get(name, name)]
            text = functions[name].docstring.value
            kind = griffe.ParameterKind.positional_or_keyword
            _, *own = method.parameters
            for first, home, more in (("data", functions, " and of `Table`"), ("self", table, "")):
                default = "None" if first == "data" else None
                parameters = griffe.Parameters(
                    griffe.Parameter(first, kind=kind, default=default), *own
                )
                called = name if home is functions else method.name
                made = griffe.Function(called, parameters=parameters, returns=method.returns)
                others = f"\n\nThe other arguments are those of `median`{more}."
                made.docstring = griffe.Docstring(text + others, parent=made)
                home.set_member(called, made)
