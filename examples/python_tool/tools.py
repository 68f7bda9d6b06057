"""Tools of env.yaml: plain functions."""

from __future__ import annotations

from rlenv.errors import ToolFailed

TIMETABLE = {"Northgate": ("06:10", "18:25"), "Millpond": ("08:05", "17:55"), "Harbour": ("07:40", "21:15")}


def timetable(stop: str) -> str:
    """Tell when the first and the last bus of the day leave for a stop."""
    if stop not in TIMETABLE:
        # The model reads this text and can try again; any other exception is shown as a plain failure.
        raise ToolFailed(f"no stop is called '{stop}'; there are: {', '.join(TIMETABLE)}")
    first, last = TIMETABLE[stop]
    return f"first {first} last {last}"


def minutes_between(start: str, end: str) -> int:
    """Count the minutes from one time of day to a later one, both written HH:MM."""
    return _minutes(end) - _minutes(start)


def _minutes(time: str) -> int:
    hours, _, minutes = time.partition(":")
    if not (hours.isdigit() and minutes.isdigit()):
        raise ToolFailed(f"'{time}' is not a time; write HH:MM, such as 06:10")
    return int(hours) * 60 + int(minutes)
