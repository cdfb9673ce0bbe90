"""What a run is: the schema of its keys, how they are loaded, how they are explained."""
