"""Running kernels on a GPU: the driver, loading, and programs of launches."""
