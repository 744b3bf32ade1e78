"""How data is copied: followers fetch from leaders, and a fetch offset is a promise."""
