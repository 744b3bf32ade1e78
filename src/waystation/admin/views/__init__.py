"""What administrators see: everything in a broker as every protocol shows it, in pages."""
