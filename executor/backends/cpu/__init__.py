"""Computing on the CPU: `CpuBackend` is a device with streams, `HostBackend` the host of other devices."""
