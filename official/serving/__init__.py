"""Serving: exports for other programs, the HTTP server and its web page. Imports only `inference`."""
