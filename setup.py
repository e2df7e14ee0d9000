"""Says where the Python package is; the repository's root has none."""

raise SystemExit("the Python package lies below the root: pip install ./crates/nowait-python")
