"""What the word problems say: wordings that the policy may train on, wordings by which the recipe was chosen, and
wordings that only the examination has.

Numbers of a problem, by their place in a wording: `a`, `b` and `c` have two digits; `s` is larger than `b` and has two
or three; `p` is a multiple of `b` by a number of two digits. `n` and `o` are two people, `t` is a kind of thing.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DEVELOPED_ON", "HELD_OUT", "PEOPLE", "THINGS", "TRAINED", "Wording"]


class Wording(NamedTuple):
    """One way to tell a problem, with the expression that answers it; both have the same places."""

    question: str
    expression: str


# fmt: off
PEOPLE = (
    "Amara", "Bruno", "Carmen", "Dmitri", "Esme", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Kofi", "Leila", "Marek",
    "Nadia", "Otis", "Priya", "Rosa", "Samir", "Tilda", "Umar", "Vera", "Wanda", "Yusuf", "Zelda",
)
THINGS = (
    "apples", "books", "bricks", "candles", "cards", "coins", "eggs", "marbles", "pens", "plums", "shells", "stamps",
    "stickers", "tickets",
)
# fmt: on

TRAINED = (
    # together
    Wording("{n} has {a} {t} and buys {b} more. How many {t} does {n} have now?", "{a}+{b}"),
    Wording("There are {a} {t} in one drawer and {b} in another. How many {t} are there altogether?", "{a}+{b}"),
    Wording("{n} found {a} {t} and {o} found {b}. How many {t} did they find together?", "{a}+{b}"),
    Wording("A bus carries {a} people, and {b} more get on. How many people are on the bus?", "{a}+{b}"),
    Wording("{n} weighs {a} kilos and {o} is {b} kilos heavier. How much does {o} weigh?", "{a}+{b}"),
    # the rest, the difference
    Wording("{n} had {s} {t} and gave away {b}. How many {t} are left?", "{s}-{b}"),
    Wording("A train has {s} seats and {b} of them are taken. How many seats are free?", "{s}-{b}"),
    Wording("{n} needs {s} {t} and already has {b}. How many more {t} does {n} need?", "{s}-{b}"),
    Wording("{n} has {s} {t} and {o} has {b}. How many more {t} does {n} have than {o}?", "{s}-{b}"),
    Wording("A rope is {s} metres long. {n} cuts off {b} metres. How long is the rest?", "{s}-{b}"),
    Wording("Of {s} children {b} are girls. How many are boys?", "{s}-{b}"),
    Wording("A shop had {s} {t} in the morning and {b} in the evening. How many {t} did it sell?", "{s}-{b}"),
    # so many of each
    Wording("There are {a} boxes with {b} {t} in each box. How many {t} are there?", "{a}*{b}"),
    Wording("A shelf holds {a} {t}. How many {t} do {b} shelves hold?", "{a}*{b}"),
    Wording("{n} walks {a} minutes every day. How many minutes does {n} walk in {b} days?", "{a}*{b}"),
    Wording("One ticket costs ${a}. How much do {b} tickets cost?", "{a}*{b}"),
    Wording("A hall has {a} rows of {b} chairs. How many chairs are in the hall?", "{a}*{b}"),
    Wording("Each of {a} pupils plants {b} seeds. How many seeds do they plant?", "{a}*{b}"),
    Wording("{n} types {a} words a minute. How many words does {n} type in {b} minutes?", "{a}*{b}"),
    # shared out
    Wording("{n} packs {p} {t} into bags of {b}. How many bags does {n} fill?", "{p}/{b}"),
    Wording("{n} shares {p} {t} equally among {b} friends. How many {t} does each friend get?", "{p}/{b}"),
    Wording("{p} chairs stand in {b} equal rows. How many chairs are in one row?", "{p}/{b}"),
    Wording("{n} drives {p} miles in {b} hours. How many miles is that in one hour?", "{p}/{b}"),
    Wording("{b} equal boxes hold {p} {t}. How many {t} are in one box?", "{p}/{b}"),
    Wording("A book has {p} pages. {n} reads {b} pages a day. How many days does it take?", "{p}/{b}"),
    # so many of each, and more
    Wording("{n} buys {a} {t} for ${b} each and a bag for ${c}. How many dollars does {n} pay?", "{a}*{b}+{c}"),
    Wording("{n} fills {a} boxes with {b} {t} each and has {c} left over. How many {t} are there?", "{a}*{b}+{c}"),
    Wording("{n} has {c} {t} and gets {a} packs of {b}. How many {t} does {n} have now?", "{c}+{a}*{b}"),
    Wording("A club has {a} teams of {b} players and {c} coaches. How many people are that?", "{a}*{b}+{c}"),
    Wording("A taxi costs ${c} and then ${a} a mile. What does a ride of {b} miles cost?", "{c}+{a}*{b}"),
    # so many of each, and less
    Wording("{n} saves ${a} a week for {b} weeks and then spends ${c}. How many dollars are left?", "{a}*{b}-{c}"),
    Wording("{n} bakes {a} trays of {b} rolls and sells {c} rolls. How many rolls are left?", "{a}*{b}-{c}"),
    Wording("A field has {a} rows of {b} plants, and {c} plants die. How many plants live?", "{a}*{b}-{c}"),
    Wording("{n} buys {a} bags of {b} {t} and loses {c} of them. How many {t} are left?", "{a}*{b}-{c}"),
    # three together
    Wording("{n} collects {a} {t} on Monday, {b} on Tuesday and {c} on Friday. How many is that?", "{a}+{b}+{c}"),
    Wording("A team scores {a}, {b} and {c} points in three games. How many points is that?", "{a}+{b}+{c}"),
    Wording("{n} pays ${a} for shoes, ${b} for a coat and ${c} for a hat. How much is that?", "{a}+{b}+{c}"),
    # more, then less
    Wording("{n} has {s} {t}, gets {c} more and loses {b}. How many {t} does {n} have now?", "{s}+{c}-{b}"),
    Wording("{s} people are on a boat. {c} get on and {b} get off. How many are on it now?", "{s}+{c}-{b}"),
    Wording("A tank holds {s} litres. {n} takes out {b} and pours in {c}. How many are in it?", "{s}-{b}+{c}"),
)

# The same kinds of problem in stories and words of their own; runs validate on these, and settings were chosen by them.
DEVELOPED_ON = (
    Wording("{n} reads {a} pages before lunch and {b} after it. How many pages does {n} read?", "{a}+{b}"),
    Wording("A tree is {a} years old and a house is {b} years older. How old is the house?", "{a}+{b}"),
    Wording("A farmer picks {s} {t} and {b} of them are bad. How many good {t} are there?", "{s}-{b}"),
    Wording("{n} wants to run {s} laps and has run {b}. How many laps are still to go?", "{s}-{b}"),
    Wording("A jacket costs ${s} and a scarf ${b}. How much cheaper is the scarf?", "{s}-{b}"),
    Wording("{n} swims {a} lengths a day. How many lengths does {n} swim in {b} days?", "{a}*{b}"),
    Wording("A crate weighs {a} kilos. How many kilos do {b} crates weigh?", "{a}*{b}"),
    Wording("An album has {a} pages with {b} photos on every page. How many photos are in it?", "{a}*{b}"),
    Wording("{n} cuts {p} metres of ribbon into {b} equal pieces. How long is each piece?", "{p}/{b}"),
    Wording("A coach pays ${p} for {b} equal shirts. What is the price of one shirt?", "{p}/{b}"),
    Wording("{n} earns ${a} an hour for {b} hours and gets a ${c} tip. How much money is that?", "{a}*{b}+{c}"),
    Wording("A wall has {a} rows of {b} tiles and {c} single tiles. How many tiles does it have?", "{a}*{b}+{c}"),
    Wording("A baker makes {a} boxes of {b} cakes, and {c} cakes are eaten. How many remain?", "{a}*{b}-{c}"),
    Wording("{a} cars, {b} vans and {c} trucks stand in a garage. How many vehicles are there?", "{a}+{b}+{c}"),
    Wording("{n} owns ${s}, earns ${c} and then spends ${b}. How many dollars does {n} own now?", "{s}+{c}-{b}"),
)

# Once more, for the examination alone.
HELD_OUT = (
    Wording("{n} plays {a} songs in the morning and {b} at night. How many songs is that in all?", "{a}+{b}"),
    Wording("A red tower is {a} metres high, a blue one {b} metres higher. How high is the blue one?", "{a}+{b}"),
    Wording("{s} letters were sent and {b} of them came back. How many letters arrived?", "{s}-{b}"),
    Wording("{n} has to water {s} flowers and has watered {b}. How many flowers are still dry?", "{s}-{b}"),
    Wording("{n} jumps {s} centimetres far and {o} {b} centimetres less. How far does {o} jump?", "{s}-{b}"),
    Wording("A machine makes {a} {t} an hour. How many {t} does it make in {b} hours?", "{a}*{b}"),
    Wording("{b} guests eat {a} {t} each. How many {t} do the guests eat?", "{a}*{b}"),
    Wording("A parking lot has {a} lines with room for {b} cars. How many cars fit in it?", "{a}*{b}"),
    Wording("{p} dollars are split evenly between {b} workers. How many dollars does one get?", "{p}/{b}"),
    Wording("A snail crawls {p} steps in {b} days, the same every day. How many steps are that a day?", "{p}/{b}"),
    Wording("{n} rents a bike for ${a} a day, {b} days, and a helmet for ${c}. How much is the bill?", "{a}*{b}+{c}"),
    Wording("A school has {a} classes of {b} children and {c} teachers. How many people are in it?", "{a}*{b}+{c}"),
    Wording("{n} picks {a} baskets of {b} pears, and {c} pears are rotten. How many are good?", "{a}*{b}-{c}"),
    Wording("{n} drove {a} miles on one day, {b} on the next and {c} on the last. How far was it?", "{a}+{b}+{c}"),
    Wording("A library has {s} {t}, receives {c} and gives {b} away. How many {t} does it have now?", "{s}+{c}-{b}"),
)
