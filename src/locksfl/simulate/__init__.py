"""The compiled engine: the round, played for many clients in blocks on one machine.

In: a population, a model, an arm with its noise, and randomness.
Out: the model after each block, and what its rounds released and counted.
May not import: experiment. It reads no settings and writes no files but its cache.
"""
