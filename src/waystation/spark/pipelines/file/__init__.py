"""A pipeline file, read: TOML in, what it declares as plain values out. Imports no Spark."""
