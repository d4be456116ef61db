"""Feature programs: the table of features, the network, and their execution and comparison."""
