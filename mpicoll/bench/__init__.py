"""The measuring room: how collectives are timed and checked, and how the results are written down.

``words`` reads what people write; ``data`` makes vectors whose result is known; ``measure`` times calls
beside one another; ``records`` describes each row; ``run`` puts these together, for all sizes.
``provenance`` says what ran where; ``table`` and ``plot`` show records.
"""
