"""Computing on the CPU: `backend.CpuBackend` is a device with streams, `host.HostBackend` the host of other devices."""
