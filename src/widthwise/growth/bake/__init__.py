"""The constants of a grown model restored to what its sizes imply, with weights rescaled to compensate."""
