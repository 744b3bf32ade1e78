"""Unit tests of pipelines: rows for the sources, and the rows that steps and sinks should make of them.

`cases.py` reads them, `values.py` gives what is written in TOML the types that Spark has, `comparing.py` finds the
differences, `running.py` runs them. Only values and running need Spark. Used by `waystation pipeline test`.
"""
