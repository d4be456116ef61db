"""What tests share: devices, processes, folders."""
