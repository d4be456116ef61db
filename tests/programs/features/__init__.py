"""Programs of features: the table, the network, and how both are run and compared."""
