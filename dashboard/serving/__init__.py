"""Access to the server: headers, hosts, origins, the token, and its health."""
