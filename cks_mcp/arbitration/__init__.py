"""Deciding conflicts: questions to a language model, checked answers, and what a decision changes. Pure functions."""
