"""One round as pure functions; `algorithm.play` shows it on one screen.

In: an arm's dials, clients' updates, and randomness as an argument.
Out: what the round releases, the next state of the server, and what its record needs.
May not import: data, simulate, or anything that knows files, settings or a network.
"""
