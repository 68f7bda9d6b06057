from collections import Counter


def mean(values):
    return sum(values) / len(values)


def median(values):
    found, half = values, len(values) // 2
    return found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2


def mode(values):
    counts = Counter(values)
    return min(value for value in counts if counts[value] == max(counts.values()))


def spread(values):
    return max(values) - min(values)
