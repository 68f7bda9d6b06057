"""The kinds of tools, each with what it stands on, and the seam between tools and whoever runs them."""
