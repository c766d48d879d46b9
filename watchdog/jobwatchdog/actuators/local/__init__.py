"""Jobs that run on this machine: started through a shim, ended as a whole tree, started again at most once."""
