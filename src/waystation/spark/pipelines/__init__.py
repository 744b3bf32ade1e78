"""Pipelines: one file that says where data comes from, what happens to it and where it goes, run on Spark.

`reading.py` makes a `Pipeline` of a file, `checking.py` finds its mistakes, `running.py` runs it, `state.py` is what is
known of those that run. Only frames, sinks, checking and running import Spark.
"""
