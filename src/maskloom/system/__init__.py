"""What the package asks of the machine: files, locks, processes, memory, devices."""
