"""Reports of completed batches, from the user's process to the readers in their stream runners."""
