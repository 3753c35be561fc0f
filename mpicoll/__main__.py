"""``python -m mpicoll`` is the program ``mpicoll``."""

from .cli import main

main()
