"""Machine code written at run time: a vector language, and products, attention, norms and the tape written in it."""

import time

IMPORTED_NS = time.time_ns()
"""Before any module of this package was imported (recipe.Recipe)."""
