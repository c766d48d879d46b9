"""What the kernel says of processes: the table, their ends, their environments."""
