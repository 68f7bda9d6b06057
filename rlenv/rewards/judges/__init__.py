"""What the kind `judge` is made of: asking one judge, several as a panel, and two answers compared."""
