"""Where weights come from: built-in folders, local folders, the hub."""
