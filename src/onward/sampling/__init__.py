"""From logits to sampled tokens: kernels in the vector language, and a plain reference in numpy."""

import time

IMPORTED_NS = time.time_ns()
"""Before any module of this package was imported (kernels.recipe.Recipe)."""
