"""Comparisons: methods beside each other at equal epsilon, equal uploads and equal tuning.

settings.py     the tables of the file: axes, tuning, methods, differences
cases.py        the cases that they make
tuning.py       what a case plays: its search for clip norm, step and cohort, and its report
folder.py       what is on disk; parts, and their merger
statistics.py   intervals over seeds, paired differences, Holm's correction
document.py     report.md, table.json and the figures
"""
