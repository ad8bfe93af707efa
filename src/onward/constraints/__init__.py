"""What a completion is constrained to: JSON schemas, regular expressions, choices and grammars, by llguidance."""
