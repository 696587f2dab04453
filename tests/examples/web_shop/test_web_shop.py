"""The shop's pages and rewards, and episodes of the agent on the simulated model."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl_scripted import real_or_scripted
from shop import Product, Shop, make_goals, make_products
from shop_agent import MAX_STEPS, client
from shop_model import answer

MAIN = Path(__file__).parents[3] / "examples" / "web_shop" / "main.py"
GOAL = {"kind": "mug", "colour": "red", "material": "glass", "size": "small", "limit": 20}
RIGHT = Product("P1", "mug", "red", "glass", 20)
PRODUCTS = [RIGHT, *(Product(f"P{i}", "mug", "red", "steel", 30) for i in range(2, 8))]


@pytest.fixture(scope="module", autouse=True)
def closed_client() -> Iterator[None]:
    yield
    client().close()


@pytest.fixture
def shop() -> Shop:
    return Shop(PRODUCTS, GOAL)


def test_an_episode_of_search_pages_options_and_purchase(shop: Shop):
    assert "search[words]" in shop.open().text
    first = shop.act("I look for it: search[red mug]")
    assert first.text.startswith("Page 1 of 2, 7 products.")
    assert "click[P5], click[next]" in first.text
    assert "glass" not in first.text
    second = shop.act("click[next]")
    assert "P7: red mug" in second.text
    assert "click[previous]" in second.text
    assert "of steel for 30" in shop.act("click[P7]").text
    assert shop.act("click[back]") == second
    assert shop.act("click[previous]") == first
    assert "of glass for 20. Size chosen: none" in shop.act("click[P1]").text
    assert "Size chosen: small" in shop.act("click[small]").text
    bought = shop.act("click[buy]")
    assert bought.done
    assert bought.reward == 1.0


@pytest.mark.parametrize("text", ["", "buy it", "click[P9]", "click[previous]", "click[buy]"])
def test_an_action_that_is_not_possible_changes_nothing(shop: Shop, text: str):
    page = shop.act("search[mug]")
    refused = shop.act(text)
    assert refused.text.startswith("Not possible here")
    assert refused.text.endswith(page.text)
    assert not refused.done


@pytest.mark.parametrize(
    ("product", "size", "score"),
    [
        (RIGHT, "small", 1.0),
        (RIGHT, None, 0.8),
        (Product("P2", "mug", "red", "steel", 30), "small", 0.6),
        (Product("P3", "lamp", "red", "glass", 20), "small", 0.0),
    ],
)
def test_the_reward_is_the_share_of_the_goal(
    shop: Shop, product: Product, size: str | None, score: float
):
    assert shop.score(product, size) == score


def test_a_search_without_a_hit_is_an_empty_list(shop: Shop):
    assert "0 products" in shop.act("search[sofa]").text


@pytest.mark.parametrize("seed", [0, 1])
def test_every_goal_can_be_reached_in_the_shop(seed: int):
    products = make_products()
    for goal in make_goals(30, seed):
        shop = Shop(products, goal)
        assert max(shop.score(product, goal["size"]) for product in products) == 1.0


def test_goals_are_repeatable():
    assert make_goals(3) == make_goals(3) != make_goals(3, seed=1)


def test_an_agent_that_forgets_what_it_tried_does_not_finish():
    measure = runpy.run_path(str(MAIN))["measure"]
    goals = make_goals(2)
    with real_or_scripted(answer, "m", environ={}) as model:
        everything, little = (measure(model, window, goals) for window in ("all", "2 pages"))
    assert everything["reward"] == everything["bought"] == 1.0
    assert everything["longest"] < MAX_STEPS
    assert little["bought"] < 1.0
    assert little["longest"] == MAX_STEPS
    assert everything["failed"] == little["failed"] == 0
    # A step of the short window costs fewer tokens.
    assert little["tokens"] / little["steps"] < 0.6 * everything["tokens"] / everything["steps"]
