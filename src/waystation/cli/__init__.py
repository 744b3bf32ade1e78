"""The command line: `main.py` finds the command; a room for each group of commands, and here the others and what
several share."""
