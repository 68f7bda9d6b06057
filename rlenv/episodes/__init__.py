"""A spec's compiled parts, the environment of them, and its episodes, played one, many or nested."""
