"""Machine code of Onward's own; see docs/explanation/kernels.md."""

import time

IMPORTED_NS = time.time_ns()
"""Before any module of this package was imported (recipe.Recipe)."""
