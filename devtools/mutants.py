"""Mutants: copies of a module that differ from it in one small fault."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Mutant", "mutants_of"]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
TEXT_CALLS = {"debug", "info", "warning", "error", "exception", "log", "warn"}
"""Methods whose arguments are texts for people."""

SKIPPED_NAMES = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: The module, relative to the repository's root.
        where: Qualified name of the function or class around the fault; empty at module level.
        line: First line of the statement that changes.
        end: Last line of what the statement itself executes.
        change: The code before and after, in one line.
        ordinal: Tells equal changes of one function apart; 0 for the first.
        at_import: Whether the changed code runs when the module is imported.
        node: The code that changes.
        replacement: The code instead; None for nothing.
        tree: The module without the fault.
    """

    file: str
    where: str
    line: int
    end: int
    change: str
    ordinal: int
    at_import: bool
    node: ast.expr | ast.stmt = field(repr=False)
    replacement: ast.expr | ast.stmt | None = field(repr=False)
    tree: ast.Module = field(repr=False)

    @property
    def source(self) -> str:
        """The whole module with the fault."""
        memo: dict[int, object] = {}
        changed = copy.deepcopy(self.tree, memo)
        target = memo[id(self.node)]
        assert isinstance(target, ast.AST)
        replacement = ast.Pass() if self.replacement is None else self.replacement
        changed = _Replace(target, copy.deepcopy(replacement, memo)).visit(changed)
        return ast.unparse(ast.fix_missing_locations(changed))

    @property
    def key(self) -> str:
        """The fault without line numbers, so that it survives edits elsewhere."""
        again = f" #{self.ordinal + 1}" if self.ordinal else ""
        return f"{self.file}::{self.where}: {self.change}{again}"


def mutants_of(root: Path, file: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    tree = ast.parse((root / file).read_text())
    seen: Counter[tuple[str, str]] = Counter()
    for place in _Places().of(tree):
        for replacement in _replacements(place.node):
            change = f"{_line(place.node)} -> {_line(replacement)}"
            yield Mutant(
                file=file,
                where=place.where,
                line=place.statement.lineno,
                end=_end(place.statement),
                change=change,
                ordinal=seen[place.where, change],
                at_import=place.at_import,
                node=place.node,
                replacement=replacement,
                tree=tree,
            )
            seen[place.where, change] += 1


def _line(node: ast.AST | None) -> str:
    if isinstance(node, ast.If | ast.While):
        text = f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    else:
        text = "pass" if node is None else " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else text[:97] + "..."


def _end(statement: ast.stmt) -> int:
    """Return the last line of a simple statement, or of a compound statement's header."""
    body: list[ast.stmt] = getattr(statement, "body", [])
    if body and isinstance(body[0], ast.stmt):
        return max(statement.lineno, body[0].lineno - 1)
    return statement.end_lineno or statement.lineno


@dataclass(frozen=True)
class _Place:
    node: ast.expr | ast.stmt
    statement: ast.stmt
    where: str
    at_import: bool


class _Places(ast.NodeVisitor):
    """Collects the nodes that may change: code that runs, without texts for people."""

    def __init__(self) -> None:
        self.found: list[_Place] = []
        self.names: list[str] = []
        self.in_function = False
        self.statement: ast.stmt | None = None

    def of(self, tree: ast.Module) -> list[_Place]:
        self.visit(tree)
        return self.found

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.stmt):
            self.statement = node
        if isinstance(node, ast.expr | ast.stmt) and self.statement is not None:
            where = ".".join(self.names)
            self.found.append(_Place(node, self.statement, where, not self.in_function))
        super().visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        outer = self.statement
        super().generic_visit(node)
        self.statement = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in SKIPPED_NAMES:
            return
        outer = self.in_function
        self.names.append(node.name)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self.in_function = True
        for statement in node.body:
            self.visit(statement)
        self.in_function = outer
        self.names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 -- ast's name

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in TEXT_CALLS:
            return
        if isinstance(called, ast.Name) and called.id in ("TypeVar", "cast", "ParamSpec"):
            return
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in ("description", "help", "summary"):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Keep the message: it is text."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Keep assertions: they state for the type checker what holds anyway."""

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None: ...

    visit_ImportFrom = visit_Import  # noqa: N815 -- ast's name

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Keep formatted texts."""


def _replacements(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt | None]:
    """Yield what may stand in place of a node; None removes a statement."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = COMPARISONS.get(type(node.ops[0]))
        if other is not None:
            yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(other_op, node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp):
        operator = ARITHMETIC.get(type(node.op))
        if operator is not None:
            yield ast.BinOp(node.left, operator(), node.right)
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.IfExp) and not _is_operator(node.test):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.If | ast.While) and not _is_operator(node.test):
        if not isinstance(node.test, ast.Constant):
            other_if = copy.copy(node)
            other_if.test = ast.UnaryOp(ast.Not(), node.test)
            yield other_if
    elif isinstance(node, ast.Return) and not _is_trivial(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif _is_removable(node):
        yield None


def _other_constants(value: object) -> Iterator[ast.expr]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
    elif isinstance(value, str) and value:
        yield ast.Constant("XX" + value)


def _is_operator(test: ast.expr) -> bool:
    """Return whether a condition has an operator that is replaced itself."""
    single = isinstance(test, ast.Compare) and len(test.ops) == 1
    inverted = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return single or inverted or isinstance(test, ast.BoolOp)


def _is_trivial(value: ast.expr | None) -> bool:
    return value is None or isinstance(value, ast.Constant)


def _is_removable(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant | ast.Yield) and not _is_text(node.value)
    if isinstance(node, ast.Assign):
        return all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    return isinstance(node, ast.AugAssign | ast.Delete | ast.Raise)


def _is_text(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in TEXT_CALLS


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().visit(node)
