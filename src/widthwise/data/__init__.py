"""From text to batches of tokens: corpora, tokenizers, shards on disk, and a loader whose state is a few integers."""
