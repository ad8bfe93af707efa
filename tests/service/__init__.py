"""Tests of onward.service: a team's keys, limits and ledger, on both databases."""
