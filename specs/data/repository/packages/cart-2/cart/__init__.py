def line(price, count):
    amount = price * count
    return amount - amount // 10 if count >= 10 else amount


def total(lines):
    return sum(line(price, count) for price, count in lines)


def shipping(cents):
    return 0 if cents > 5000 else 490


def split(cents, people):
    share, rest = divmod(cents, people)
    return [share + 1] * rest + [share] * (people - rest)
