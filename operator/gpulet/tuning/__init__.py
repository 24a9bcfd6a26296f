"""The programs of a TuningJob: tracker, server, client, merge."""
