import re


def slug(title):
    return "-".join(re.findall("[a-z0-9]+", title.lower()))


def initials(name):
    return "".join(word[0].upper() for word in name.split())


def wrap(text, width):
    lines = []
    for word in text.split():
        if lines and len(lines[-1]) + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines
