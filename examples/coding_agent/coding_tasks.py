"""Four small projects with a fault each: what to mend, the files, and the hidden checks."""

from __future__ import annotations

from typing import Any

__all__ = ["TASKS"]


def _tests(imports: str, **checks: str) -> str:
    """Return a test module with one test for each expression that must be true."""
    tests = (
        f"    def test_{name}(self):\n        self.assertTrue({check})\n"
        for name, check in checks.items()
    )
    head = f"import unittest\n\n{imports}\n\n\nclass Tests(unittest.TestCase):\n"
    return head + "\n".join(tests)


MEDIAN = """\
def median(values):
    \"\"\"Return the middle value, or the mean of the two middle values.\"\"\"
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
"""

SLUG = """\
def slug(title):
    \"\"\"Return a title as part of a URL: lower case, words joined by single dashes.\"\"\"
    return title.lower().replace(" ", "-")
"""

ACCOUNT = """\
class Account:
    \"\"\"Money of one person; it cannot be overdrawn.\"\"\"

    def __init__(self, balance=0):
        self.balance = balance

    def withdraw(self, amount):
        self.balance -= amount
        return self.balance
"""

OVERDRAW = """\
from account import Account


def overdraw(balance, amount):
    account = Account(balance)
    try:
        account.withdraw(amount)
    except ValueError:
        return account.balance
"""

TAX = """\
RATE = 0.19


def with_tax(cents):
    return int(cents * (1 + RATE))
"""

CART = """\
from tax import with_tax


def total(prices):
    \"\"\"Return the price of a cart in cents: the tax is rounded once, half up.\"\"\"
    return sum(with_tax(price) for price in prices)
"""

TASKS: list[dict[str, Any]] = [
    {
        "name": "median",
        "request": "median() is wrong for an even number of values. Mend it.",
        "files": {
            "stats.py": MEDIAN,
            "test_stats.py": _tests("from stats import median", even="median([1, 3]) == 2"),
        },
        "setup": "from stats import median",
        "hidden": [
            ["median([3, 1, 2])", 2],
            ["median([4, 1, 2, 3])", 2.5],
            ["median([7])", 7],
        ],
    },
    {
        "name": "slug",
        "request": "slug() leaves double dashes and punctuation in URLs. Mend it.",
        "files": {
            "text.py": SLUG,
            "test_text.py": _tests(
                "from text import slug",
                spaces="slug('Hello  World') == 'hello-world'",
                marks="slug('Hello, World!') == 'hello-world'",
            ),
        },
        "setup": "from text import slug",
        "hidden": [
            ["slug('One Two')", "one-two"],
            ["slug(' a   b ')", "a-b"],
            ["slug('What? Now!')", "what-now"],
            ["slug('Route 66')", "route-66"],
        ],
    },
    {
        "name": "account",
        "request": "An account can be overdrawn. withdraw() must raise ValueError instead.",
        "files": {
            "account.py": ACCOUNT,
            "test_account.py": (
                "import unittest\n\nfrom account import Account\n\n\n"
                "class Tests(unittest.TestCase):\n    def test_overdraw(self):\n"
                "        with self.assertRaises(ValueError):\n"
                "            Account(10).withdraw(11)\n"
            ),
        },
        "setup": OVERDRAW,
        "hidden": [["Account(10).withdraw(10)", 0], ["overdraw(5, 6)", 5]],
    },
    {
        "name": "cart",
        "request": "Carts are a few cents too cheap: the tax must be rounded once, half up.",
        "files": {
            "cart.py": CART,
            "tax.py": TAX,
            "test_cart.py": _tests("from cart import total", one="total([50]) == 60"),
        },
        "setup": "from cart import total",
        "hidden": [
            ["total([55])", 65],
            ["total([55, 55])", 131],
            ["total([50])", 60],
            ["total([])", 0],
        ],
    },
]
"""``hidden`` has expressions with their right values, ``setup`` the code that they need. The agent
never sees them; they give the reward."""
