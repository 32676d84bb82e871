"""Attempts to refute what is claimed: attacks on the round, properties of what it draws, replays.

In: an arm, and the epsilon that is claimed for it.
Out: a lower bound on epsilon, and each property with the deviation that was seen.
May not import: federation, paper, cli. It reads no user's data: its clients are made up.
"""
