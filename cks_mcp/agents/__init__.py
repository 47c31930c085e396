"""Worker processes beside the server: they claim tasks from the outbox and settle them."""
