"""What every part may use and no user types: bounds, JSON, paths, spellings, quick records; knows nothing of rlenv."""
