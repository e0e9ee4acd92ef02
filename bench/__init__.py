"""How fast the log is, against peers in the same run: `python -m bench`, or `make bench`.

harness.py      rounds: ours, peer, ours, peer, …; each in an empty directory of its own on the disk under test
figures.py      a figure is the median over rounds of what was computed within a round, with its spread
scenarios/      one file for each goal
peers/          what the goals are measured against
report.py       the table and the JSON
"""
