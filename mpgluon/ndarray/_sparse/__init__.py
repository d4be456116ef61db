"""The implementation of sparse arrays (``mx.nd.sparse``)."""
