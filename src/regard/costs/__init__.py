"""What attention costs: operations, bytes and cache, by formula and by count."""
