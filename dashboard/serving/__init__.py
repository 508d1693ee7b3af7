"""Who may ask the server what: headers, hosts, origins, the token, and how it is."""
