"""The routes of HTTP, a file for each subject, and the OpenAPI document that is made of them."""
