"""What a query in SQL asks of: one table, or two that are joined."""

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import sqlglot
from sqlglot import expressions as ast

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.joining import open_source
from prudent.release.joins import Join, join
from prudent.release.questions.text import NEAREST, Node, refused, text_of

_OF_A_TABLE = frozenset(("this", "db", "catalog", "alias"))
_OF_A_JOIN = frozenset(("this", "on", "using", "side", "kind"))
_OF_ROWS = frozenset(("expressions", "from_", "from", "joins", "where", "kind", "with_", "with"))
_PARTS = _OF_ROWS | {"group", "having", "order", "limit", "offset"}
_LONGEST = 5000  # nodes of a query, with its subqueries written out
_KINDS = {
    ("", ""): "inner",
    ("", "INNER"): "inner",
    ("LEFT", ""): "left",
    ("LEFT", "OUTER"): "left",
}


def select_of(text: str) -> Node:
    """The tree of a query, if it is one that may have a private answer."""
    _validate.instance(str, "a query in SQL", query=text)
    try:
        trees: list[Node] = [
            tree for tree in sqlglot.parse(text, dialect="duckdb") if tree is not None
        ]
    except Exception:  # also of the tokenizer
        raise refused(text, "it cannot be parsed") from None
    if len(trees) != 1 or not isinstance(trees[0], ast.Select):
        raise refused(text, "it is no single SELECT")
    (tree,) = trees
    distinct = tree.args.get("distinct")
    if distinct is not None and (distinct.args.get("on") or not tree.find(ast.AggFunc)):
        raise refused(text, "it has DISTINCT of rows", NEAREST[ast.Distinct])
    tree.set("distinct", None)  # groups differ from each other, and so do their rows
    if unknown := {name for name, value in tree.args.items() if value} - _PARTS:
        raise refused(text, f"it has {', '.join(sorted(unknown)).upper()}")
    tree = _written_out(tree, text, {})
    for kind in (ast.Subquery, ast.Select, ast.Window):
        if any(each is not tree for each in tree.find_all(kind)):
            raise refused(
                text, f"it has a {kind.__name__.upper()}", NEAREST.get(kind, NEAREST[ast.Subquery])
            )
    return tree


def _written_out(tree: Node, text: str, known: Mapping[str, Node]) -> Node:
    """A query with the subquery that it asks of written out, where that looks at one row each."""
    for item in list(tree.expressions):  # by the name that it has in the query as it is given
        if not isinstance(item, ast.Alias) and not isinstance(item, ast.Star):
            item.replace(ast.alias_(item.copy(), text_of(item), quoted=True))
    known = dict(known)
    named = tree.args.get("with_") or tree.args.get("with")
    if named is not None:
        if named.args.get("recursive"):
            raise refused(text, "it has WITH RECURSIVE", NEAREST[ast.Subquery])
        for each in named.expressions:
            known[each.alias] = _of_rows(each.this, text, known)
        for name in ("with_", "with"):
            tree.set(name, None)
    source = tree.args.get("from_") or tree.args.get("from")
    asked = None if source is None else source.this
    if isinstance(asked, ast.Subquery):
        inner = _of_rows(asked.this, text, known)
    elif isinstance(asked, ast.Table) and not asked.args.get("db") and asked.name in known:
        inner = known[asked.name].copy()
    else:
        return tree
    if tree.args.get("joins"):
        raise refused(text, "it joins a subquery", NEAREST[ast.Subquery])
    for name in ("from_", "from"):
        tree.set(name, None)  # the columns that are left are its own
    values = {item.alias_or_name: item.unalias() for item in inner.expressions}
    everything = any(isinstance(item, ast.Star) for item in inner.expressions)
    own = {item.alias for item in tree.expressions}
    for column in list(tree.find_all(ast.Column)):
        if column.table and column.table != asked.alias_or_name:
            raise refused(text, f"it names no table {column.table}")
        if column.name in values:
            value = values[column.name].copy()
            column.replace(value if isinstance(value, ast.Column) else ast.Paren(this=value))
        elif everything:
            column.set("table", None)
        elif column.name not in own:
            raise refused(text, f"its subquery has no column {column.name}")
    conditions = [each.args["where"].this for each in (inner, tree) if each.args.get("where")]
    if conditions:
        tree.set("where", ast.Where(this=ast.and_(*(each.copy() for each in conditions))))
    for name in ("from_", "from", "joins"):
        tree.set(name, inner.args.get(name))
    if sum(1 for _ in tree.walk()) > _LONGEST:
        raise refused(text, "it is too long with its subqueries written out")
    return tree


def _of_rows(inner: Node, text: str, known: Mapping[str, Node]) -> Node:
    """A subquery, written out, if it only chooses and computes values of one row at a time."""
    used = {name.rstrip("_") for name, value in inner.args.items() if value} - _OF_ROWS
    if not isinstance(inner, ast.Select) or used:
        what = ", ".join(sorted(used)).upper() if isinstance(inner, ast.Select) else "no SELECT"
        raise refused(text, f"its subquery has {what}", NEAREST[ast.Subquery])
    inner = _written_out(inner.copy(), text, known)
    if any(item.find(ast.AggFunc) for item in inner.expressions):
        raise refused(text, "its subquery has an aggregate", NEAREST[ast.Subquery])
    return inner


@attrs.frozen
class Named:
    """A table of a query."""

    name: str  # its name, or its path
    alias: str  # what its columns are called by

    @classmethod
    def of(cls, node: Node, text: str) -> "Named":
        """The table that a node names."""
        plain = isinstance(node, ast.Table) and isinstance(node.this, ast.Identifier)
        if not plain or {key for key, value in node.args.items() if value} - _OF_A_TABLE:
            raise refused(text, "it has no single table after FROM")
        name = ".".join(part.name for part in node.parts)
        return cls(name, node.alias or node.name)

    def source(self, tables: Mapping[str, Any], connect: str | None) -> Any:
        """The table itself: one that was given, the name of one in a database, or a file."""
        if connect is not None:
            return self.name
        if self.name in tables:
            return tables[self.name]
        if "." in self.name and os.path.splitext(self.name)[1]:
            return self.name
        raise ArgumentError(
            "query",
            f"FROM one of {', '.join(tables)}"
            if tables
            else "FROM a file in quotes, or a table given",
            got=self.name,
            hint=f"Of a file write FROM '{self.name}.parquet'; in Python, a frame may be given as "
            f"{self.name}=….",
        )


@attrs.frozen
class From:
    """The tables of a query, and how they are joined: how, and on which pairs of columns."""

    first: Named
    others: tuple[tuple[Named, str, Mapping[str, str]], ...]

    @classmethod
    def of(cls, tree: Node, text: str) -> "From":
        """What stands after FROM."""
        source = tree.args.get("from_") or tree.args.get("from")
        first = Named.of(None if source is None else source.this, text)
        others: list[tuple[Named, str, Mapping[str, str]]] = []
        for node in tree.args.get("joins") or ():
            second = Named.of(node.this, text)
            how = _KINDS.get((node.side, node.kind))
            if how is None or {key for key, value in node.args.items() if value} - _OF_A_JOIN:
                raise refused(
                    text,
                    "of joins it may have JOIN and LEFT JOIN, with ON or USING",
                    NEAREST[ast.Join],
                )
            for column in node.find_all(ast.Column):  # the key is that of the first table
                if any(column.table == each.alias for each, how, _ in others if how == "left"):
                    raise refused(text, f"{column.table} was joined by LEFT JOIN, and has no key")
            others.append((second, how, _pairs(node, second, text)))
        known = {first.alias, *(second.alias for second, _, _ in others)}
        if len(known) <= len(others):
            raise refused(
                text, "two tables have the same name", "Give them names: FROM a x JOIN b y."
            )
        for column in tree.find_all(ast.Column):
            if column.table and column.table not in known:
                raise refused(text, f"it names no table {column.table}")
            if not others:  # a value is called the same with and without its table
                column.set("table", None)
        return cls(first, tuple(others))

    def source(
        self,
        data: Any,
        connect: str | None,
        tables: Mapping[str, Any],
        *,
        unit: str | None,
        public: Sequence[str],
    ) -> dict[str, Any]:
        """The arguments of a request that say which table to read."""
        if isinstance(data, str | os.PathLike) and str(data).endswith((".duckdb", ".ddb")):
            if not self.others:
                return {"data": data, "table": self.first.name}
            data, connect = None, f"duckdb://{os.fspath(data)}"
        if not self.others:
            if connect is not None:
                return {"connect": connect, "table": self.first.name}
            return {"data": self.first.source(tables, None) if data is None else data}
        if data is not None:
            raise ArgumentError(
                "data",
                "None for a join",
                shown="one table",
                hint="Give each by its name: a=…, b=….",
            )
        joined = self._joined(connect, tables, unit, _validate.values(public=public))
        opened = open_source(joined, unit=joined.unit)
        weakref.finalize(opened, opened.close)
        return {"data": opened}

    def _joined(
        self, connect: str | None, tables: Mapping[str, Any], unit: str | None, public: list[str]
    ) -> Join:
        everything = [self.first, *(second for second, _, _ in self.others)]
        names = {name for each in everything for name in (each.name, each.alias)}
        for name in public:
            _validate.one_of(sorted(names), public=name)
        # Of FROM a b JOIN b c, b is what the query calls so: the table a.
        aliases = {each.alias for each in everything}
        public = [
            each.alias
            for each in everything
            if each.alias in public or (each.name in public and each.name not in aliases)
        ]
        first, others = self.first, self.others
        if first.alias in public and len(others) == 1 and others[0][1] == "inner":
            ((second, how, pairs),) = others  # the private table comes first
            first, others = second, ((first, how, {b: a for a, b in pairs.items()}),)
        found: Any = first.source(tables, connect)
        for second, how, pairs in others:
            found = join(
                found,
                second.source(tables, connect),
                on=pairs,
                unit=unit,
                public=second.alias in public,
                how=how,  # type: ignore[arg-type]
                connect=connect,
                names=(first.alias, second.alias),
            )
        return found  # type: ignore[no-any-return]


def _pairs(node: Node, second: Named, text: str) -> dict[str, str]:
    """The pairs of columns that ON or USING calls equal: of a table before, and of this one."""
    if using := node.args.get("using"):
        return {each.name: each.name for each in using}
    found: dict[str, str] = {}
    for each in conjuncts(node.args["on"]) if node.args.get("on") else ():
        match each:
            case ast.EQ(this=ast.Column() as one, expression=ast.Column() as other):
                if one.table == second.alias:
                    one, other = other, one
                if other.table == second.alias != one.table:
                    if one.name in found or other.name in found.values():
                        raise refused(text, f"a column of {text_of(each)} has been named before")
                    found[one.name] = other.name
                    continue
        raise refused(text, f"{text_of(each)} is not a.key = b.key", NEAREST[ast.Join])
    if not found:
        raise refused(text, "its JOIN has neither ON nor USING", NEAREST[ast.Join])
    return found


def qualify(tree: Node, origins: Mapping[tuple[str, str], str], text: str) -> None:
    """Give the columns of a query the names that they have in a join."""
    for column in list(tree.find_all(ast.Column)):
        if column.table:
            plain = origins.get((column.table, column.name))
            if plain is None:
                raise refused(text, f"{column.table} has no column {column.name}")
            quoted = column.this.quoted or "." in plain
            column.set("this", ast.to_identifier(plain, quoted=quoted))
            column.set("table", None)


def conjuncts(node: Node) -> Iterator[Node]:
    """The conditions that must all hold."""
    node = node.unnest()
    if isinstance(node, ast.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node
