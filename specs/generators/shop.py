"""A shop: categories, products, customers, orders and their items."""

from __future__ import annotations

import datetime
import random
import sqlite3
from collections.abc import Iterator

from generators.question import Question
from generators.words import CITIES, day, full_names

__all__ = ["SCHEMA", "fill", "questions"]

SCHEMA = """
CREATE TABLE category (category_id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE product (product_id INTEGER PRIMARY KEY, name TEXT NOT NULL,
    category_id INTEGER NOT NULL REFERENCES category, price REAL NOT NULL, stock INTEGER NOT NULL, weight_g INTEGER);
CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL,
    registered_on TEXT NOT NULL, email TEXT);
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customer,
    ordered_on TEXT NOT NULL, status TEXT NOT NULL, coupon TEXT, shipped_on TEXT);
CREATE TABLE order_item (order_id INTEGER NOT NULL REFERENCES orders, product_id INTEGER NOT NULL REFERENCES product,
    quantity INTEGER NOT NULL, unit_price REAL NOT NULL, PRIMARY KEY (order_id, product_id));
"""

CATEGORIES = ("kitchen", "garden", "toys", "office", "sports")
THINGS = ("Kettle", "Trowel", "Kite", "Stapler", "Racket", "Lamp", "Basket", "Puzzle", "Binder", "Helmet")
KINDS = ("Small", "Sturdy", "Blue", "Classic")
STATUSES = ("shipped", "open", "cancelled", "returned")
COUPONS = ("SPRING", "LOYAL", "FIRST")
REVENUE = "Revenue is quantity times unit_price, summed over order items; cancelled orders do not count."


def fill(database: sqlite3.Connection, rng: random.Random) -> None:
    """Fills the tables."""
    products = [
        (
            key,
            name,
            rng.randint(1, 5),
            rng.randint(8, 320) * 0.25,
            rng.choice((0, *[rng.randint(1, 90) for _ in range(5)])),
            rng.choice((None, *[rng.randint(5, 400) * 10 for _ in range(5)])),
        )
        for key, name in enumerate([f"{kind} {thing}" for thing in THINGS for kind in KINDS], 1)
    ]
    customers = [
        (
            key,
            name,
            rng.choice(CITIES),
            day(rng, "2020-01-01", "2023-12-31"),
            rng.choice((None, *[name.lower().replace(" ", ".") + "@mail.example"] * 3)),
        )
        for key, name in enumerate(full_names(rng, 50), 1)
    ]
    orders, items = [], []
    for key in range(1, 181):
        ordered = datetime.date.fromisoformat(day(rng, "2023-01-01", "2024-05-31"))
        status = rng.choices(STATUSES, (7, 2, 1, 1))[0]
        sent = status in ("shipped", "returned")
        shipped = str(ordered + datetime.timedelta(days=rng.randint(1, 12))) if sent else None
        orders.append((key, rng.randint(1, 45), str(ordered), status, rng.choice((*COUPONS, None, None)), shipped))
        for product in sorted(rng.sample(products[:36], rng.randint(1, 4))):
            items.append((key, product[0], rng.randint(1, 5), product[3]))
    categories = list(enumerate(CATEGORIES, 1))
    for table, rows in (
        ("category", categories),
        ("product", products),
        ("customer", customers),
        ("orders", orders),
        ("order_item", items),
    ):
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def questions() -> Iterator[Question]:
    """Every question that can be asked of this database."""
    for category in CATEGORIES:
        inside = f"product AS p JOIN category AS c ON c.category_id = p.category_id WHERE c.name = '{category}'"
        sold = (
            "order_item AS i JOIN product AS p ON p.product_id = i.product_id JOIN category AS c ON "
            f"c.category_id = p.category_id JOIN orders AS o ON o.order_id = i.order_id WHERE c.name = '{category}'"
        )
        yield Question(
            f"Which {category} products are out of stock?",
            f"SELECT p.name FROM {inside} AND p.stock = 0",
            f"SELECT p.product_id FROM {inside} AND p.stock = 0",
            f"SELECT p.product_id, p.name FROM {inside} AND p.stock = 0",
        )
        yield Question(
            f"How many {category} products are there whose weight is not known?",
            f"SELECT COUNT(*) FROM {inside} AND p.weight_g IS NULL",
        )
        yield Question(
            f"What are the three most expensive {category} products? Give name and price, dearest first; ties by name.",
            f"SELECT p.name, p.price FROM {inside} ORDER BY p.price DESC, p.name LIMIT 3",
        )
        yield Question(
            f"What is the revenue of the category '{category}'?",
            f"SELECT SUM(i.quantity * i.unit_price) FROM {sold} AND o.status <> 'cancelled'",
            instructions=REVENUE,
        )
        yield Question(
            f"Which {category} products cost more than the average product of the whole shop?",
            f"SELECT p.name FROM {inside} AND p.price > (SELECT AVG(price) FROM product)",
            f"SELECT p.product_id FROM {inside} AND p.price > (SELECT AVG(price) FROM product)",
        )
        yield Question(
            f"Which {category} product has sold the most pieces, whatever became of the orders? Ties by name.",
            f"SELECT p.name FROM {sold} GROUP BY p.product_id, p.name ORDER BY SUM(i.quantity) DESC, p.name LIMIT 1",
        )
        for coupon in COUPONS:
            yield Question(
                f"How many different orders with the coupon {coupon} contain a {category} product?",
                f"SELECT COUNT(DISTINCT o.order_id) FROM {sold} AND o.coupon = '{coupon}'",
            )
    for city in CITIES:
        yield Question(
            f"Which customers from {city} have never ordered anything?",
            f"SELECT name FROM customer WHERE city = '{city}' AND customer_id NOT IN (SELECT customer_id FROM orders)",
            "SELECT k.customer_id FROM customer AS k LEFT JOIN orders AS o ON o.customer_id = k.customer_id "
            f"WHERE k.city = '{city}' AND o.order_id IS NULL",
        )
        yield Question(
            f"Who from {city} has placed at least five orders? Give name and number, most orders first; ties by name.",
            "SELECT k.name, COUNT(*) AS placed FROM customer AS k JOIN orders AS o ON o.customer_id = k.customer_id "
            f"WHERE k.city = '{city}' GROUP BY k.customer_id, k.name HAVING COUNT(*) >= 5 "
            "ORDER BY placed DESC, k.name",
        )
        yield Question(
            f"What is the revenue from customers who live in {city}?",
            "SELECT SUM(i.quantity * i.unit_price) FROM order_item AS i JOIN orders AS o ON o.order_id = i.order_id "
            f"JOIN customer AS k ON k.customer_id = o.customer_id WHERE k.city = '{city}' AND o.status <> 'cancelled'",
            instructions=REVENUE,
        )
        yield Question(
            f"How many orders without a coupon came from {city}?",
            "SELECT COUNT(*) FROM orders AS o JOIN customer AS k ON k.customer_id = o.customer_id "
            f"WHERE k.city = '{city}' AND o.coupon IS NULL",
        )
    for status in STATUSES:
        yield Question(
            f"How many orders are there with the status '{status}' for each coupon? Leave out orders without a coupon; "
            "give coupon and number.",
            f"SELECT coupon, COUNT(*) FROM orders WHERE status = '{status}' AND coupon IS NOT NULL GROUP BY coupon",
        )
        for coupon in COUPONS:
            yield Question(
                f"What is the latest order date of an order with the status '{status}' and the coupon {coupon}?",
                f"SELECT MAX(ordered_on) FROM orders WHERE status = '{status}' AND coupon = '{coupon}'",
            )
    for days in (9, 10, 11):
        yield Question(
            f"How many orders took more than {days} days to ship?",
            f"SELECT COUNT(*) FROM orders WHERE julianday(shipped_on) - julianday(ordered_on) > {days}",
        )
    for thing in THINGS:
        yield Question(
            f"Which kinds of {thing.lower()} does the shop have? Give name and price, cheapest first; ties by name.",
            f"SELECT name, price FROM product WHERE name LIKE '%{thing}' ORDER BY price, name",
        )
