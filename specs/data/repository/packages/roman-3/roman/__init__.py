SIGNS = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
         (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
VALUES = {sign: value for value, sign in SIGNS}


def to_roman(number):
    text = ""
    for value, sign in SIGNS:
        while number >= value:
            text += sign
            number -= value
    return text


def from_roman(text):
    values = [VALUES[sign] for sign in text.upper()]
    return sum(-a if a <= b else a for a, b in zip(values, values[1:] + [0]))


def is_roman(text):
    return bool(text) and set(text) <= set("MDCLXVI") and to_roman(from_roman(text)) == text
