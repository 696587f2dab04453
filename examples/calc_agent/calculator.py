"""A calculator as an MCP server: ``python calculator.py`` speaks the protocol on stdin and stdout.

The server walks the parsed expression and never calls ``eval``, since a language model wrote the
expression.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

__all__ = ["calculate"]

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_MAX_LENGTH = 200
_MAX_DIGITS = 50
_MAX_EXPONENT = 64


def calculate(expression: str) -> str:
    """Return the value of an expression of numbers, ``+ - * / // % **`` and parentheses.

    Fractions are exact until the end: ``1/3*3`` is ``1``.

    Raises:
        ValueError: The text is not such an expression, or its value is too large.
    """
    if len(expression) > _MAX_LENGTH:
        raise ValueError(f"the expression is longer than {_MAX_LENGTH} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is not an arithmetic expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, exponent = _value(left), _value(right)
            if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
                raise ValueError(f"an exponent must be whole and at most {_MAX_EXPONENT}")
            return _bounded(Fraction(base ** int(exponent)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case _:
            raise ValueError("only numbers, + - * / // % ** and parentheses are understood")


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**_MAX_DIGITS:
        raise ValueError(f"the value has more than {_MAX_DIGITS} digits")
    return value


def main() -> None:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server = MCPServer("calculator")

    @server.tool(name="calculate", structured_output=False)
    def tool(expression: str) -> str:
        """Work out an arithmetic expression, for example (3 + 4) * 12.5 / 2."""
        try:
            return calculate(expression)
        except ValueError as error:
            raise ToolError(str(error)) from None

    server.run("stdio")


if __name__ == "__main__":
    main()
