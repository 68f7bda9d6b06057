def merged(spans):
    found = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def length(spans):
    return sum(last - first + 1 for first, last in merged(spans))


def holds(spans, number):
    return any(first <= number <= last for first, last in spans)
