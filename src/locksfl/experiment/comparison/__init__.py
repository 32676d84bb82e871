"""Comparisons: methods beside each other at equal epsilon, equal uploads and equal tuning.

settings.py     the tables of the file: axes, tuning, methods, differences
grid.py         the cases that they make
noise.py        the noise of every arm, found once and in parallel
bench.py        the data of a comparison, its two halves of held-out records, and one case played
tuning.py       clip norm and step of a case, from the one grid, widened where its edge is best
folder.py       what is on disk: one line for every finished stage, parts and their merger
play.py         every case that a folder does not have yet
statistics.py   intervals over seeds, paired differences, Holm's correction
document.py     report.md, table.json and the figures
runner.py       arms under several seeds on one simulator: what everything above is played with
"""
