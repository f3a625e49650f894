"""`bert benchmark`: measurements, compared with a bound or with other systems."""
