"""The command line: `main.py` finds the command, each other file is one command or what several share."""
