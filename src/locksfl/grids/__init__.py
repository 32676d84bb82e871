"""Grids: many plays of many arms, and the one way in which all of them are played and kept.

A **play** is an arm with a seed. A **case** is a generator: it yields the plays that it needs next,
is sent what came of them, and returns its result; so a search that is widened, or a report after a
search, is plain code. `drive` asks every case for its next plays, lets an **executor** play them,
and appends a row to a file for each that is finished. A case follows from its own rows alone, so

* the file is all there is to keep: a grid that was stopped goes on where it stood;
* rows may come in any order, from one process, several, or one device: the finished file has the
  same bytes;
* a play that fails holds up its own case only, and the same command tries it again;
* a part is every k-th case, and joining the files of all parts gives the whole.

plays.py       what is played, and what comes of it
bench.py       the data, opened once, and arms played on them
executors.py   one play after another, together on one device, or in several processes
drive.py       the cases, the executor and the file
search.py      clip norm x reach, widened where the edge of the grid is best
comparison/    methods beside each other: `locks compare`
tune/          clip norm, step and rounds of an experiment: `locks tune`

In come an experiment's settings and arms; out come typed outcomes. The paper's reproduction is a
third way to make cases, and lies in `paper/`. This room imports everything up to `experiment/`.
"""
