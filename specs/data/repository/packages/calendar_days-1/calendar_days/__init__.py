LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    return year % 4 == 0 and year % 100 != 0


def days_in(year, month):
    return 29 if month == 2 and is_leap(year) else LENGTHS[month - 1]


def ordinal(year, month, day):
    return sum(days_in(year, one) for one in range(1, month)) + day
