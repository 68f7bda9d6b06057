def transposed(rows):
    return [list(column) for column in zip(*rows)]


def product(a, b):
    return [[sum(x * y for x, y in zip(row, column)) for column in transposed(b)] for row in a]


def trace(rows):
    return sum(rows[at][at] for at in range(len(rows)))


def identity(size):
    return [[int(x == y) for x in range(size)] for y in range(size)]


def power(rows, exponent):
    found = rows
    for _ in range(exponent):
        found = product(found, rows)
    return found
