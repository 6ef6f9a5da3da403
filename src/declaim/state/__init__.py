"""Device memory at fixed addresses, indexed by slot or page; holds no arithmetic."""
