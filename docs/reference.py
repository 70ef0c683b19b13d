"""What the reference shows of a name that is declared by another; mkdocstrings reads this file."""

import griffe

_FUNCTIONS = "prudent.release.functions"
_METHODS = {"table": "ask"}  # of `Table`, where the function has another name


class Reference(griffe.Extension):
    """Signatures and texts of what is made of methods of `Table`."""

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        """Shows the parameters of the method that another one is declared to have."""
        for decorator in func.decorators:
            name, _, model = str(decorator.value).rstrip(")").partition("(")
            if name == "_same_signature" and func.parent is not None:
                func.parameters = func.parent[model].parameters

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Adds the statistics as functions, which that module makes when it is imported."""
        if pkg.path != "prudent":
            return
        functions, table = pkg["release.functions"], pkg["release.data_table.Table"]
        lists = [*pkg["release.statistics"].members.items(), *pkg["release"].members.items()]
        for name, listed in lists:
            if not listed.is_alias or not listed.target_path.startswith(f"{_FUNCTIONS}."):
                continue
            method = table[_METHODS.get(name, name)]
            kind = griffe.ParameterKind.positional_or_keyword
            _, *own = method.parameters
            parameters = griffe.Parameters(
                griffe.Parameter("data", kind=kind, default="None"), *own
            )
            made = griffe.Function(name, parameters=parameters, returns=method.returns)
            text = f"{method.docstring.value}\n\nThe other arguments are those of `Table`."
            made.docstring = griffe.Docstring(text, parent=made)
            functions.set_member(name, made)
