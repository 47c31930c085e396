"""What happens over time: commits, journal, bus, conflict records, inboxes."""
