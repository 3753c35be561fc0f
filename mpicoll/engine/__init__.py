"""What executes a schedule: the compiled interpreter, and the reference engine as its oracle."""
