"""Databases that episodes query: one contract, and an engine for each kind.

resource    the compiled entry: which file a task names, and what is known of the files that were opened before
database    the handle of one episode: whose turn it is, what a statement may use, which name it may have meant
sqlite      engine of the kind `sqlite`: plain statements on the event loop, others in a process
duckdb      engine of the kind `duckdb`: all in processes
workers     the processes; `rows` and `limits` are what goes to and fro
"""
