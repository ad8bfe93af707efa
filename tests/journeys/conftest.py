"""Journeys run without the settings of the developer."""

from tests.cli.conftest import clean_environment

__all__ = ["clean_environment"]
