"""What validation looks at beyond types: each check is a generator of faults over a `Subject`."""
