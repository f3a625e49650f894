"""The update of LAMB, AdamW and Adam on CPUs as operations of our own, in C++."""
