"""A trained policy without veRL: as a policy of rlenv's, and measured."""
