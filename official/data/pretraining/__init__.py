"""Makes pre-training examples of documents, and inspects them."""
