"""The parts of `make bench`, each a function that returns figures."""
