"""The command line. Each command is a module with ``add_parser`` and ``run``; heavy imports stay inside functions."""
