"""The error that says what is wrong with somebody's data."""

__all__ = ["DataError"]


class DataError(ValueError):
    """Data that can't be used; the text says where and why, so that no traceback is needed."""
