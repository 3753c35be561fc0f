"""The measuring room: how collectives are timed and checked, and how the results are written down.

``words`` reads what people write, and ``forms`` says what each collective takes. ``data`` makes vectors whose
reduction is known, and ``cases`` says what each rank gives and must find. ``measure`` times calls beside one
another; ``records`` describes each row; ``run`` puts these together, for all sizes. ``provenance`` says what
ran where; ``table`` and ``plot`` show records. ``device`` has buffers in the memory of GPUs, and ``nccl`` a
competitor there.
"""
