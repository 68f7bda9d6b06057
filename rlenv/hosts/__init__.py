"""What other programs drive episodes by: one end for all of them, servers and their clients, and exports."""
