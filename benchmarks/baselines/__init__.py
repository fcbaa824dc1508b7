"""The same problems solved in other ways: what a suite sets beside the library's own call."""
