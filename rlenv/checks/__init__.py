"""The checks of validation beyond types: each is a generator of faults over a `Subject`."""
