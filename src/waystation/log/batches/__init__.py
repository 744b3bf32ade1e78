"""Record batches, the unit of everything stored: read, checked, built, compressed."""
