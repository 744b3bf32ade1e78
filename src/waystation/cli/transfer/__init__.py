"""`waystation export` and `import`: messages in files, and the formats of those files."""
