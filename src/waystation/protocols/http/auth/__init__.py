"""Who sends a request, and whether a web page of another origin made a browser send it."""
