"""The tools, a module a theme; each registers itself in its toolset."""
