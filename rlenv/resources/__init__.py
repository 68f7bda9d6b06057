"""Resources that an episode may hold open: databases, folders, and Python's own objects; opened, reset and closed with
it.
"""
