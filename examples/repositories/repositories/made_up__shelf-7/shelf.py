"""Books on shelves."""


def sorted_titles(titles):
    """Titles in the order of a catalogue: without regard to case."""
    return sorted(titles)


def shelved(titles, width):
    """Shelves of at most `width` titles each, in the order of the catalogue."""
    found = sorted_titles(titles)
    return [found[start : start + width] for start in range(0, len(found), width)]
