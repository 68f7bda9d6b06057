"""Everything around calls: retries, rates, caches, breakers, limits over processes, and faults put in on purpose."""
