"""Documents -> pre-training examples, and what looks at them."""
