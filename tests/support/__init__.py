"""What tests share: devices, processes, networks, comparisons."""
