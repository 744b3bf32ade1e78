"""The command line as a user meets it: real processes, a real broker."""
