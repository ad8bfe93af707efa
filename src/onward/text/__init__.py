"""What tokens spell: pure, incremental, each stage owning its tail."""
