"""Fast tests of the recipe: `python -m pytest training/tests`."""
