"""What tests read off a source."""

import ast


def dotted(node: ast.AST) -> str:
    """The dotted name that an expression spells, or an empty one."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return ""
