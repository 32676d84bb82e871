"""Grids: many plays of many arms, and the one way in which all of them are played and kept.

In: the settings and arms of an experiment.
Out: typed outcomes, one line of a file each; reports of comparisons and tunings made of them.
May not import: audit, federation, paper, cli. The paper's reproduction makes cases of its own.

A play is an arm with a seed. A case is a generator: it yields the plays that it needs next, is sent
what came of them, and returns its result; so a search that is widened, and a report after it, is
plain code. `drive` asks every case for its next plays, lets an executor play them, and appends a
row to a file for each that is finished. A case follows from its own rows alone, so

* the file is all there is to keep: a grid that was stopped goes on where it stood;
* rows may come in any order, from one process, several, or one device: the finished file has the
  same bytes;
* a play that fails holds up its own case only, and the same command tries it again;
* a part is every k-th case, and joining the files of all parts gives the whole.

drive.py       plays, cases, rows, and the driver, which alone writes
executors.py   one play after another, together on one device, or in several processes
bench.py       the data, opened once, and arms played on them
search.py      clip norm x reach, widened where the edge of the grid is best
begun.py       what a folder was begun with: only the same command goes on in it
comparison/    methods beside each other: `locks compare`
tune/          clip norm, step and rounds of an experiment: `locks tune`
"""
