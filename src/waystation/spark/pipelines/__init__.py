"""Pipelines: one file that says where data comes from, what happens to it and where it goes, run on Spark.

`file/` makes a `Pipeline` of a file, `checking.py` finds its mistakes, `running.py` runs it: `transform/` makes its
tables, `output/` writes them, and `status/` is what is known of those that run. Only frames, sinks, checking and
running import Spark.
"""
