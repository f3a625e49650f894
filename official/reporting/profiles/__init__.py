"""What a profile of a run says: where its time went, and its memory."""
