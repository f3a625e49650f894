"""`bert evaluate`: scores of predictions."""
