"""What episodes asked of the outside and were answered: kept, and given again."""
