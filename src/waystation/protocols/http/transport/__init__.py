"""HTTP/1.1, WebSocket and server-sent events: requests and answers, their bytes, and what a route is."""
