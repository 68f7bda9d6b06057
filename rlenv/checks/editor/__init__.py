"""Services for editors: faults, completions, hovers and an outline of a text that need not be saved or whole."""
