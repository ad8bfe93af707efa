"""HTML and JSON documents that describe this server: landing page, API reference, OpenAPI, schemas."""
