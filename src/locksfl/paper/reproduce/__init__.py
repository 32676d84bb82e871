"""The paper's one experiment, with the figure that it leaves empty: `locks reproduce`.

settings.py   what the paper says, what is reconstructed, and the two versions
tune.py       clip and step of every method, from one grid (tuned.toml is the result)
runs.py       every run, in a folder that can be resumed
results.py    the table, and the conclusion that is drawn from it
document.py   report.md and the figures
"""
