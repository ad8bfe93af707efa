"""From logits to sampled tokens."""

import time

IMPORTED_NS = time.time_ns()
"""Before any module of this package was imported (kernels.recipe.Recipe)."""
