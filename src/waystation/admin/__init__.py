"""What administrators see and do: views of everything in a broker, search, jobs in the background, policies."""
