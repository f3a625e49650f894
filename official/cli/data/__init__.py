"""`bert data`: making, checking and downloading of data."""
