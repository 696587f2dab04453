"""A small web shop as text: pages, links to click, a search, and a purchase that ends an episode.

The form follows WebShop (Yao et al., 2022, https://arxiv.org/abs/2207.01206): an instruction names
a product, its options and a price limit; the reward is the share of them that a purchase satisfies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

__all__ = ["Product", "Shop", "View", "make_goals", "make_products"]

_KINDS = ("jacket", "backpack", "lamp", "blanket", "mug")
_COLOURS = ("red", "blue", "green", "black")
_MATERIALS = ("cotton", "wool", "steel", "glass", "leather", "bamboo")
_SIZES = ("small", "medium", "large")
_PER_PAGE = 5
_ACTION = re.compile(r"(search|click)\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Product:
    """A product; its material and price are only on its own page."""

    id: str
    kind: str
    colour: str
    material: str
    price: int

    @property
    def title(self) -> str:
        """Its name in lists."""
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True, slots=True)
class View:
    """The page after an action; its reward counts when the episode is over."""

    text: str
    done: bool = False
    reward: float = 0.0


def make_products() -> list[Product]:
    """Return the products of the shop; about a dozen share each title."""
    rng = Random(0)
    return [
        Product(
            id=f"P{100 + number}",
            kind=rng.choice(_KINDS),
            colour=rng.choice(_COLOURS),
            material=rng.choice(_MATERIALS),
            price=rng.randrange(10, 100),
        )
        for number in range(240)
    ]


def make_goals(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return goals, each of which at least one product of the shop satisfies."""
    rng = Random(seed + 1)
    wanted = rng.sample(make_products(), count)
    return [
        {
            "kind": product.kind,
            "colour": product.colour,
            "material": product.material,
            "size": rng.choice(_SIZES),
            "limit": product.price + 3,
        }
        for product in wanted
    ]


@dataclass(slots=True)
class Shop:
    """One episode.

    Attributes:
        products: The products of the shop.
        goal: What to buy; see :func:`make_goals`.
    """

    products: list[Product]
    goal: dict[str, Any]
    _found: list[Product] = field(default_factory=list[Product])
    _page: int = 0
    _item: Product | None = None
    _size: str | None = None

    def open(self) -> View:
        """Return the first page."""
        return View("Home. Actions: search[words]")

    def act(self, text: str) -> View:
        """Do the last action that a text of the model names; other texts change nothing."""
        actions = _ACTION.findall(text)
        if not actions:
            return self._refuse("no action")
        name, argument = actions[-1]
        if name == "search":
            return self._search(argument)
        if self._item is not None:
            return self._click_on_item(self._item, argument)
        return self._click_in_list(argument)

    def _search(self, words: str) -> View:
        asked = set(words.lower().split())
        hits = [(len(asked & set(product.title.split())), product) for product in self.products]
        best = max((count for count, _ in hits), default=0)
        self._found = [product for count, product in hits if count == best > 0]
        self._page, self._item, self._size = 0, None, None
        return self._list()

    def _click_in_list(self, target: str) -> View:
        shown = self._shown()
        chosen = next((product for product in shown if product.id == target), None)
        if chosen is not None:
            self._item = chosen
            return self._show(chosen)
        if target == "next" and self._page + 1 < self._pages():
            self._page += 1
        elif target == "previous" and self._page:
            self._page -= 1
        else:
            return self._refuse(target)
        return self._list()

    def _click_on_item(self, item: Product, target: str) -> View:
        if target == "back":
            self._item, self._size = None, None
            return self._list()
        if target in _SIZES:
            self._size = target
            return self._show(item)
        if target == "buy":
            return View(f"You bought {item.id}.", done=True, reward=self.score(item, self._size))
        return self._refuse(target)

    def score(self, item: Product, size: str | None) -> float:
        """Return the share of the goal that a purchase satisfies."""
        goal = self.goal
        met = (
            item.kind == goal["kind"],
            item.colour == goal["colour"],
            item.material == goal["material"],
            size == goal["size"],
            item.price <= goal["limit"],
        )
        # As in WebShop, another kind of product is worth nothing.
        return sum(met) / len(met) if met[0] else 0.0

    # -- pages -----------------------------------------------------------------------------------

    def _pages(self) -> int:
        return -(-len(self._found) // _PER_PAGE)

    def _shown(self) -> list[Product]:
        start = self._page * _PER_PAGE
        return self._found[start : start + _PER_PAGE]

    def _list(self) -> View:
        rows = "\n".join(f"{product.id}: {product.title}" for product in self._shown())
        links = [product.id for product in self._shown()]
        links += ["previous"] * (self._page > 0) + ["next"] * (self._page + 1 < self._pages())
        actions = ", ".join(["search[words]", *(f"click[{link}]" for link in links)])
        head = f"Page {self._page + 1} of {self._pages()}, {len(self._found)} products."
        return View(f"{head}\n{rows}\nActions: {actions}")

    def _show(self, item: Product) -> View:
        links = (*_SIZES, "back", "buy")
        actions = ", ".join(["search[words]", *(f"click[{link}]" for link in links)])
        return View(
            f"{item.id}: {item.title} of {item.material} for {item.price}. "
            f"Size chosen: {self._size or 'none'}.\nActions: {actions}"
        )

    def _refuse(self, what: str) -> View:
        return View(f"Not possible here: {what}. {self._now().text}")

    def _now(self) -> View:
        if self._item is not None:
            return self._show(self._item)
        return self._list() if self._found else self.open()
