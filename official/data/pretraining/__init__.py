"""Makes pre-training examples from documents, and inspects them."""
