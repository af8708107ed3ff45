"""Private maths and plumbing that two or more families share. It never imports ``trainkit.distributed``."""
