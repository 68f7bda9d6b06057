"""`rlenv train`: from specs to a folder that holds a whole run."""
