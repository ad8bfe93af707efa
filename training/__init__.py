"""The recipe that trains `storyteller`, the small language model inside Onward.

Run it with ``python -m training.train --data DIR`` from the repository root.
Onward never imports it.
"""
