"""The files of a log: segments, their indexes, what is derived from them, and how one replaces others."""
