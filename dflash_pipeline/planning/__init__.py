"""Pure algorithms: lengths to boundaries, lengths to manifests. numpy only; same inputs, same bytes."""
