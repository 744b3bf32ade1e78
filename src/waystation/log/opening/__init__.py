"""Opening a log after whatever happened: recovery, segments that overlap, repair."""
