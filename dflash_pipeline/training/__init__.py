"""The training op: reads Parquet manifests and mapped Arrow, tells a Tracker. Knows no MLflow, no database."""
