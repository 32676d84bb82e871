"""The server of a federation: who is asked, what is summed, and what every client has spent.

In: an experiment, the devices' public keys, and their answers.
Out: a run folder as `locks run` leaves it, with the server's own ledger.
May not import: a device's guard, policy or ledger, which owe a server nothing.
"""
