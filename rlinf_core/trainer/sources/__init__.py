"""Where experience comes from, a file each: simulators, stations, recordings."""
