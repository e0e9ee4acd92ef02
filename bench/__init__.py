"""How fast the log and the broker are, against peers in the same run: `python -m bench`, or `make bench`.

harness.py      rounds: ours, peer, ours, peer, …; each in an empty directory of its own on the disk under test
figures.py      a figure is the median over rounds of what was computed within a round, with its spread
scenarios/      one file for each goal of the log; one for each group of goals of the broker
broker.py       our side as a process: `icestream serve` on loopback
generator.py    the compiled load generator (load/): the same client for the broker and its peers
peers/          what the goals are measured against
report.py       the lines and the JSON
"""
