"""NVIDIA GPUs: `backend.CudaBackend`. CuPy is imported when it starts, never by importing one of these modules."""
