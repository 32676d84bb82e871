"""The paper: its theory as printed and corrected, its experiment, its accounting as printed.

In: constants of a problem, a run with a seed, or the paper's settings.
Out: bounds, verdicts and a report. Nothing here is a guarantee, and no other room relies on it.
May not import: cli.
"""
