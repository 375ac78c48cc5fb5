"""A recording in the formats of other tools: Perfetto, CSV, Parquet, TensorBoard."""
