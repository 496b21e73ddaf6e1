"""Where examples come from: published sets, your own files, partitions, clients that lie."""
