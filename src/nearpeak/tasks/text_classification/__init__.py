"""Text classification: `nearpeak train CONFIG.toml`, from files of texts to a model folder."""
