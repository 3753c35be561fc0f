"""What collectives cost on machines that need not be here. It reads schedules, and nothing of the engine."""
