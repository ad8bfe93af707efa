"""Measurements. Run each as a module from the repository root: `python -m benchmarks.engine`; see README.md."""
