"""`bert benchmark`: measurements, each beside what bounds it or what others do."""
