"""The parts of a block that are bound by memory, on CPUs as operations of our own, in C++."""
