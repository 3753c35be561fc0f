"""The report room: studies as one page that opens anywhere, as figures and as tables.

``data`` reads studies and puts every point in a row, ``modelled`` adds what a machine's model says, and
``winners`` says which algorithm is best where. ``figures`` describes each figure once, for the page and for
files; ``sentences`` says in words what is seen, ``tables`` what is in numbers; ``page`` puts all together.
No MPI.
"""
