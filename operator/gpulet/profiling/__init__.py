"""The prober: measures a served model in its share."""
