"""A library: branches, authors, books, members, loans."""

from __future__ import annotations

import datetime
import random
import sqlite3
from collections.abc import Iterator

from generators.question import Question
from generators.words import CITIES, day, full_names

__all__ = ["SCHEMA", "fill", "questions"]

SCHEMA = """
CREATE TABLE branch (branch_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, opened_year INTEGER NOT NULL);
CREATE TABLE author (author_id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT, born_year INTEGER NOT NULL);
CREATE TABLE book (book_id INTEGER PRIMARY KEY, title TEXT NOT NULL, author_id INTEGER NOT NULL REFERENCES author,
    genre TEXT NOT NULL, published_year INTEGER NOT NULL, pages INTEGER);
CREATE TABLE member (member_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, joined_on TEXT NOT NULL,
    email TEXT);
CREATE TABLE loan (loan_id INTEGER PRIMARY KEY, book_id INTEGER NOT NULL REFERENCES book,
    member_id INTEGER NOT NULL REFERENCES member, branch_id INTEGER NOT NULL REFERENCES branch,
    loaned_on TEXT NOT NULL, due_on TEXT NOT NULL, returned_on TEXT);
"""  # noqa: E501

GENRES = ("mystery", "poetry", "history", "travel", "science", "fantasy")
COUNTRIES = ("Norway", "Brazil", "Kenya", "Japan", "Ireland")
BRANCHES = ("Harbour", "Old Mill", "Central", "Lakeside")
_FIRST = ("The Silent", "A Distant", "The Last", "Beyond the", "The Crooked", "Under the", "The Golden", "A Borrowed")
_SECOND = ("Harbour", "Garden", "Compass", "Winter", "Lantern", "Orchard", "Mirror", "Archive")
OVERDUE = "A loan is open while returned_on is NULL. A loan was late when it was returned after due_on."


def fill(database: sqlite3.Connection, rng: random.Random) -> None:
    """Fills the tables."""
    authors = [
        (key, name, rng.choice((*COUNTRIES, None)), rng.randint(1920, 1995))
        for key, name in enumerate(full_names(rng, 18), 1)
    ]
    titles = rng.sample([f"{first} {second}" for first in _FIRST for second in _SECOND], 56)
    books = [
        (
            key,
            title,
            rng.randint(1, 17),
            rng.choice(GENRES),
            rng.randint(1955, 2023),
            rng.choice((None, *[rng.randint(90, 640) for _ in range(7)])),
        )
        for key, title in enumerate(titles, 1)
    ]
    members = [
        (
            key,
            name,
            rng.choice(CITIES),
            day(rng, "2018-01-01", "2023-12-31"),
            rng.choice((None, *[name.lower().replace(" ", ".") + "@post.example"] * 3)),
        )
        for key, name in enumerate(full_names(rng, 40), 1)
    ]
    loans = []
    for key in range(1, 221):
        loaned = datetime.date.fromisoformat(day(rng, "2023-01-01", "2024-05-31"))
        due = loaned + datetime.timedelta(days=28)
        back = loaned + datetime.timedelta(days=rng.randint(2, 45))
        returned = None if rng.random() < 0.15 else back.isoformat()
        loans.append(
            (key, rng.randint(1, 52), rng.randint(1, 36), rng.randint(1, 4), str(loaned), due.isoformat(), returned)
        )
    branches = [(key, name, CITIES[key], rng.randint(1890, 2010)) for key, name in enumerate(BRANCHES, 1)]
    for table, rows in (
        ("branch", branches),
        ("author", authors),
        ("book", books),
        ("member", members),
        ("loan", loans),
    ):
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def questions() -> Iterator[Question]:
    """Every question that can be asked of this database."""
    for country in COUNTRIES:
        yield Question(
            f"Which authors come from {country}?",
            f"SELECT name FROM author WHERE country = '{country}'",
            f"SELECT author_id FROM author WHERE country = '{country}'",
            f"SELECT author_id, name FROM author WHERE country = '{country}'",
        )
    for genre in GENRES:
        yield Question(
            f"How many {genre} books were published after 1990?",
            f"SELECT COUNT(*) FROM book WHERE genre = '{genre}' AND published_year > 1990",
        )
        yield Question(
            f"What is the average number of pages of the {genre} books whose page count is known?",
            f"SELECT AVG(pages) FROM book WHERE genre = '{genre}' AND pages IS NOT NULL",
        )
        yield Question(
            f"List the titles of the three {genre} books with the most pages, longest first; ties by title.",
            f"SELECT title FROM book WHERE genre = '{genre}' AND pages IS NOT NULL ORDER BY pages DESC, title LIMIT 3",
        )
        yield Question(
            f"Which members have borrowed at least three {genre} books? Count each loan.",
            "SELECT m.name FROM member AS m JOIN loan AS l ON l.member_id = m.member_id JOIN book AS b ON "
            f"b.book_id = l.book_id WHERE b.genre = '{genre}' GROUP BY m.member_id, m.name HAVING COUNT(*) >= 3",
            "SELECT m.member_id FROM member AS m JOIN loan AS l ON l.member_id = m.member_id JOIN book AS b ON "
            f"b.book_id = l.book_id WHERE b.genre = '{genre}' GROUP BY m.member_id HAVING COUNT(*) >= 3",
        )
        yield Question(
            f"Which {genre} books have never been lent? Give their titles.",
            f"SELECT title FROM book WHERE genre = '{genre}' AND book_id NOT IN (SELECT book_id FROM loan)",
        )
        yield Question(
            f"How many loans of {genre} books are open in each branch that has any? Give branch and number.",
            "SELECT r.name, COUNT(*) FROM branch AS r JOIN loan AS l ON l.branch_id = r.branch_id JOIN book AS b ON "
            f"b.book_id = l.book_id WHERE b.genre = '{genre}' AND l.returned_on IS NULL GROUP BY r.branch_id, r.name",
            instructions=OVERDUE,
        )
    for city in CITIES:
        yield Question(
            f"Give the names of the members from {city} who have no e-mail address, in alphabetical order.",
            f"SELECT name FROM member WHERE city = '{city}' AND email IS NULL ORDER BY name",
        )
        yield Question(
            f"How many loans were made by members who live in {city}?",
            f"SELECT COUNT(*) FROM loan JOIN member ON member.member_id = loan.member_id WHERE member.city = '{city}'",
        )
        yield Question(
            f"Which member from {city} has borrowed most often, and how often? Give name and number; ties by name.",
            "SELECT m.name, COUNT(*) AS loans FROM member AS m JOIN loan AS l ON l.member_id = m.member_id "
            f"WHERE m.city = '{city}' GROUP BY m.member_id, m.name ORDER BY loans DESC, m.name LIMIT 1",
        )
    for branch in BRANCHES:
        yield Question(
            f"How many late returns were there at the {branch} branch?",
            "SELECT COUNT(*) FROM loan JOIN branch ON branch.branch_id = loan.branch_id "
            f"WHERE branch.name = '{branch}' AND returned_on > due_on",
            instructions=OVERDUE,
        )
        yield Question(
            f"For the {branch} branch, count the loans of each genre, most frequent first; ties by genre.",
            "SELECT b.genre, COUNT(*) AS loans FROM loan AS l JOIN book AS b ON b.book_id = l.book_id JOIN branch AS r "
            f"ON r.branch_id = l.branch_id WHERE r.name = '{branch}' GROUP BY b.genre ORDER BY loans DESC, b.genre",
        )
        yield Question(
            f"Which authors have had books lent at the {branch} branch five times or more?",
            "SELECT a.name FROM author AS a JOIN book AS b ON b.author_id = a.author_id JOIN loan AS l ON "
            "l.book_id = b.book_id JOIN branch AS r ON r.branch_id = l.branch_id "
            f"WHERE r.name = '{branch}' GROUP BY a.author_id, a.name HAVING COUNT(*) >= 5",
            "SELECT a.author_id FROM author AS a JOIN book AS b ON b.author_id = a.author_id JOIN loan AS l ON "
            "l.book_id = b.book_id JOIN branch AS r ON r.branch_id = l.branch_id "
            f"WHERE r.name = '{branch}' GROUP BY a.author_id HAVING COUNT(*) >= 5",
        )
    for year in range(1960, 1995, 5):
        yield Question(
            f"Which authors born after {year} have written more than three books? Give name and number of books.",
            "SELECT a.name, COUNT(*) FROM author AS a JOIN book AS b ON b.author_id = a.author_id "
            f"WHERE a.born_year > {year} GROUP BY a.author_id, a.name HAVING COUNT(*) > 3",
        )
        yield Question(
            f"How many books from before {year} are longer than the average book?",
            f"SELECT COUNT(*) FROM book WHERE published_year < {year} AND pages > (SELECT AVG(pages) FROM book)",
        )
